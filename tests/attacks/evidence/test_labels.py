"""Labels that the gradient of the output layer shows."""

import itertools

from hypothesis import given
from hypothesis import strategies as st
from tiny import TEXTS, tiny_model

from gradleak import Client, load_model
from gradleak.attacks.evidence.labels import arrangements, label_of_one
from gradleak.models.load import save_model


def test_labels_are_read_from_a_single_gradient(tiny):
    if tiny.task == "causal-lm":
        return
    has_bias = getattr(tiny.adapter.output_layer, "bias", None) is not None
    for label in (0, 1):
        update = Client(tiny, known=()).update(TEXTS[:1], [label])
        assert label_of_one(update, tiny) == (label if has_bias else None)


def test_labels_without_a_bias_need_three_classes(tmp_path):
    model = tiny_model("llama", "classification")
    wide = load_model(save_model(model.module, model.tokenizer, tmp_path), num_labels=4)
    for label in range(4):
        assert label_of_one(Client(wide, known=()).update(TEXTS[:1], [label]), wide) == label


@given(st.lists(st.integers(0, 3), min_size=2, max_size=3))
def test_arrangements_are_distinct_and_keep_the_counts(counts):
    found = list(arrangements(counts, ordered=True))
    assert len({tuple(labels) for labels in found}) == len(found)
    assert all([labels.count(c) for c in range(len(counts))] == counts for labels in found)


def test_arrangements_come_in_order_also_of_thousands_of_sentences():
    """A batch of more than a thousand sentences went too deep for the interpreter."""
    plain = [0, 0, 1, 2]
    every = [list(order) for order in sorted(set(itertools.permutations(plain)))]
    assert list(arrangements((2, 1, 1), ordered=True)) == every
    first, second = itertools.islice(arrangements((2000, 1000), ordered=True), 2)
    assert first == [0] * 2000 + [1] * 1000
    assert second == [0] * 1999 + [1, 0] + [1] * 999
