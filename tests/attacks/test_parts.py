"""The pieces of the search: orders, schedules, what the gradient gives away, nearest tokens."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny import TEXTS, tiny_model

from gradleak import Client, GradleakError
from gradleak.attacks.matching import MatchingOptions
from gradleak.attacks.parts.frame import empty_dummies
from gradleak.attacks.parts.knowledge import gather, label_from_head, length_from_positions
from gradleak.attacks.parts.reorder import MOVES, propose
from gradleak.attacks.parts.schedule import learning_rate
from gradleak.attacks.parts.vocabulary import Vocabulary


@given(st.integers(1, 30), st.data())
def test_every_move_is_a_permutation(n, data):
    places = [data.draw(st.integers(0, n - 1)) for _ in range(3)]
    for move in MOVES:
        assert sorted(move(n, *places)) == list(range(n))


@given(st.integers(1, 12), st.integers(1, 60), st.integers(0, 99))
def test_proposals_are_distinct_and_keep_the_present_order(n, count, seed):
    orders = propose(n, count, torch.Generator().manual_seed(seed))
    assert orders[0] == tuple(range(n))
    assert len(set(orders)) == len(orders) <= count
    assert orders == propose(n, count, torch.Generator().manual_seed(seed))


def test_schedules():
    step = MatchingOptions(lr=1.0, schedule="step", decay=0.5, decay_every=10)
    assert [learning_rate(step, i) for i in (0, 9, 10, 25)] == [1.0, 1.0, 0.5, 0.25]
    linear = MatchingOptions(lr=1.0, schedule="linear", steps=10)
    assert [learning_rate(linear, i) for i in (0, 5, 10)] == [1.0, 0.5, 0.0]
    assert learning_rate(MatchingOptions(lr=1.0, schedule="linear", steps=10, linear_over=20), 10) == 0.5
    assert learning_rate(MatchingOptions(lr=0.3, schedule="constant"), 999) == 0.3


def test_labels_are_read_from_a_single_gradient(tiny):
    if tiny.task == "causal-lm":
        return
    has_bias = getattr(tiny.adapter.output_layer, "bias", None) is not None
    for label in (0, 1):
        update = Client(tiny, known=()).update(TEXTS[:1], [label])
        assert label_from_head(update, tiny) == (label if has_bias else None)


def test_labels_without_a_bias_need_three_classes(tmp_path):
    from gradleak import load_model

    model = tiny_model("llama", "classification")
    model.module.save_pretrained(tmp_path)
    model.tokenizer.save_pretrained(tmp_path)
    wide = load_model(tmp_path, num_labels=4)
    for label in range(4):
        assert label_from_head(Client(wide, known=()).update(TEXTS[:1], [label]), wide) == label


def test_lengths_are_read_from_position_rows(tiny):
    labels = [1] if tiny.task == "classification" else None
    for text in TEXTS:
        update = Client(tiny, known=()).update([text], labels)
        expected = tiny.encode([text]).lengths[0] if tiny.adapter.positions is not None else None
        assert length_from_positions(update, tiny) == expected


def test_what_is_neither_granted_nor_visible_is_refused(tiny_bert):
    lone = Client(tiny_bert, known=("batch_size",)).update(TEXTS[:1], [1])
    knowledge = gather(lone, tiny_bert, "test")
    assert (knowledge.labels, knowledge.found) == ([1], ["lengths", "labels"])
    with pytest.raises(GradleakError, match="batch size"):
        gather(Client(tiny_bert, known=()).update(TEXTS[:1], [1]), tiny_bert, "test")
    with pytest.raises(GradleakError, match="lengths of a batch of 3"):
        gather(Client(tiny_bert, known=("batch_size",)).update(TEXTS, [1, 0, 1]), tiny_bert, "test")


def test_special_tokens_are_in_place_and_fixed(tiny):
    labels = [0, 1, 1] if tiny.task == "classification" else None
    update = Client(tiny).update(TEXTS, labels)
    dummies, fixed = empty_dummies(tiny, [gather(update, tiny, "test")])
    batch = tiny.encode(TEXTS)
    assert torch.equal(dummies.mask[0], batch.mask)
    framed = fixed[0] & batch.mask
    assert int(framed.sum()) == 3 * (len(tiny.prefix) + len(tiny.suffix))
    torch.testing.assert_close(dummies.embeds[0][framed], tiny.embed(batch.ids)[framed])


def test_nearest_finds_every_token_and_no_special_one(tiny):
    vocabulary = Vocabulary.of(tiny)
    tokens, cosines = vocabulary.nearest(3.0 * tiny.word_table[vocabulary.ids])
    assert torch.equal(tokens, vocabulary.ids)
    torch.testing.assert_close(cosines, torch.ones_like(cosines), rtol=1e-4, atol=1e-4)
    assert not set(vocabulary.ids.tolist()) & set(tiny.tokenizer.all_special_ids)
