"""What does not fit into memory is refused before it is begun, and what was found without it stands."""

import pytest

from gradleak import Client, GradleakError, attack
from gradleak.core.memory import plan_with


@pytest.fixture
def claimed(tiny_bert):
    """An update whose manifest claims many more sentences than it is of."""
    update = Client(tiny_bert).update(["Rosa moved to ward six."], [0])
    known = update.known.model_copy(update={"batch_size": 300})
    return type(update)(update.tensors, update.manifest.model_copy(update={"known": known}))


@pytest.fixture(autouse=True)
def little_memory():
    plan_with(1000)
    yield
    plan_with(None)


def test_matching_says_what_it_would_need(claimed, tiny_bert):
    with pytest.raises(GradleakError, match=r"300 sentences of .* GB"):
        attack(claimed, tiny_bert, "lamp-cos", steps=1)


def test_auto_keeps_what_it_found_without_it(claimed, tiny_bert):
    (answer,) = attack(claimed, tiny_bert, "auto", steps=1)
    assert [sentence.text for sentence in answer.sentences] == ["rosa moved to ward six."]
    assert answer.sentences[0].certified
