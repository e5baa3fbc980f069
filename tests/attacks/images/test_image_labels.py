"""The class of a single image."""

import pytest
import torch
from blobs import singles, small_model
from hypothesis import given
from hypothesis import strategies as st
from pictured import KINDS, image_model
from tiny import secret_of

from gradleak import ImageClient
from gradleak.attacks.images.labels import class_errors, label_of_one

DEFENCES = [(), ("sign",), ("prune:ratio=0.9",), ("noise:sigma=0.001",)]


@pytest.fixture(scope="module")
def model():
    return small_model()


@pytest.mark.parametrize("defenses", DEFENCES)
def test_the_label_shows_whatever_the_defence(model, defenses):
    for truth in singles(6, seed=2):
        assert (
            label_of_one(ImageClient(model, defenses=defenses).update(truth, secret_of(0)), model) == truth.labels[0]
        )


@pytest.mark.parametrize("kind", KINDS)
def test_the_label_shows_whatever_the_model(kind):
    """Behind a layer norm inputs of the head have both signs, and the sum of a row says nothing."""
    model = image_model(kind)
    for defenses in ((), ("sign",)):
        client = ImageClient(model, defenses=defenses)
        assert [label_of_one(client.update(one), model) for one in singles(6, seed=2)] == [
            one.labels[0] for one in singles(6, seed=2)
        ]


@given(
    st.lists(st.floats(-3, 3), min_size=2, max_size=6),
    st.integers(0, 5),
    st.lists(st.floats(-2, 2), min_size=3, max_size=12),
)
def test_errors_are_those_of_cross_entropy(logits, label, inputs):
    """Of any logits and any inputs; the bias has 1 as its input."""
    label %= len(logits)
    scores = torch.tensor(logits, requires_grad=True)
    (wanted,) = torch.autograd.grad(torch.nn.functional.cross_entropy(scores[None], torch.tensor([label])), scores)
    found = class_errors(torch.outer(wanted, torch.tensor([*inputs, 1.0])))
    assert int(found.argmin()) == label
    assert torch.allclose(found / found.norm(), wanted.double() / wanted.double().norm(), atol=1e-4)
