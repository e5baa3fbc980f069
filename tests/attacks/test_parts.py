"""The pieces of the search: orders, schedules, what the gradient gives away, nearest tokens."""

import dataclasses
import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny import TEXTS, TOLD, tiny_model

from gradleak import Client, GradleakError, load_model
from gradleak.attacks.evidence.compositions import cheapest_compositions
from gradleak.attacks.evidence.knowledge import gather
from gradleak.attacks.evidence.labels import _nearest_counts, arrangements, label_counts, label_of_one
from gradleak.attacks.evidence.lengths import _splits, length_guesses, longest_sentence, total_tokens
from gradleak.attacks.search.empty_dummies import empty_dummies
from gradleak.attacks.search.options import MatchingOptions
from gradleak.attacks.search.reorder import MOVES, propose
from gradleak.attacks.search.schedule import learning_rate
from gradleak.attacks.search.vocabulary import Vocabulary
from gradleak.models.load import save_model
from gradleak.updates.gradient import as_gradient


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
        assert label_of_one(update, tiny) == (label if has_bias else None)


def test_labels_without_a_bias_need_three_classes(tmp_path):
    model = tiny_model("llama", "classification")
    wide = load_model(save_model(model.module, model.tokenizer, tmp_path), num_labels=4)
    for label in range(4):
        assert label_of_one(Client(wide, known=()).update(TEXTS[:1], [label]), wide) == label


def test_lengths_are_read_from_position_rows(tiny):
    labels = [1] if tiny.task == "classification" else None
    for text in TEXTS:
        update = Client(tiny, known=()).update([text], labels)
        expected = tiny.encode([text]).lengths[0] if tiny.adapter.positions is not None else None
        assert longest_sentence(update, tiny) == expected


def test_what_is_not_granted_is_found_or_guessed(tiny_bert):
    lone = Client(tiny_bert, known=("batch_size",)).update(TEXTS[:1], [1])
    (knowledge,) = gather(lone, tiny_bert, "test", 10)
    assert (knowledge.labels, knowledge.found) == ([1], ["lengths", "labels"])
    assert knowledge.lengths == tiny_bert.encode(TEXTS[:1]).lengths
    with pytest.raises(GradleakError, match="batch size"):
        gather(Client(tiny_bert, known=()).update(TEXTS[:1], [1]), tiny_bert, "test", 10)
    guesses = gather(Client(tiny_bert, known=("batch_size",)).update(TEXTS, [1, 0, 1]), tiny_bert, "test", 10)
    assert 1 < len(guesses) <= 10
    assert all(max(guess.lengths) == max(tiny_bert.encode(TEXTS).lengths) for guess in guesses)


def test_a_batch_tells_its_token_count_and_its_label_counts():
    """A model wide enough for the rank to be the number of tokens."""
    model = tiny_model("bert", "classification", layers=3, width=64)
    update = Client(model, known=("batch_size",)).update(TEXTS, [1, 0, 1])
    lengths = model.encode(TEXTS).lengths
    assert total_tokens(update, model, 3) == sum(lengths)
    assert next(label_counts(update, model, 3)) == (1, 2)
    guesses = gather(update, model, "test", 50)
    assert sorted(lengths) in [sorted(guess.lengths) for guess in guesses]


@pytest.mark.parametrize("sigma", [0.003, 0.01, 0.03])
def test_noise_never_makes_a_sentence_of_special_tokens_alone(tiny, sigma):
    """A row or two may stand out by chance; an attack must not take that for the length of an empty sentence."""
    sender = Client(tiny, known=("batch_size",), defenses=[f"noise:sigma={sigma}"])
    shortest = len(tiny.prefix) + len(tiny.suffix) + 1
    for seed in range(4):
        found = longest_sentence(sender.update(TEXTS[:1], None if tiny.task == "causal-lm" else [0], seed), tiny)
        assert found is None or found >= shortest


def test_a_noisy_update_tells_no_length(tiny_bert):
    update = Client(tiny_bert, ("batch_size",), defenses=["noise:sigma=1"]).update(TEXTS[:1], [1])
    assert longest_sentence(update, tiny_bert) is None
    assert total_tokens(update, tiny_bert, 1) is None
    assert len(gather(update, tiny_bert, "test", 24)) > 5


@given(st.integers(1, 4), st.integers(4, 12), st.integers(6, 40))
def test_length_guesses_fit_what_is_known(size, longest, total):
    model = tiny_model("bert", "classification")
    for guess in length_guesses(model, size, longest, total):
        assert len(guess) == size
        assert max(guess) == longest
        assert min(guess) >= 3


@given(st.lists(st.floats(-1, 5), min_size=1, max_size=4), st.integers(1, 5))
def test_sharings_come_in_the_order_of_a_full_list(wanted, size):
    def misfit(counts):
        return sum(abs(count - own) for count, own in zip(counts, wanted, strict=True))

    every = [counts for counts in itertools.product(range(size + 1), repeat=len(wanted)) if sum(counts) == size]
    found = list(cheapest_compositions(_nearest_counts(wanted, size), misfit, least=0, most=size, unordered=False))
    assert sorted(found) == sorted(every)
    assert [misfit(counts) for counts in found] == pytest.approx(sorted(map(misfit, every)))


@given(st.integers(1, 5), st.integers(1, 3), st.integers(3, 9), st.integers(1, 45))
def test_splits_come_in_the_order_of_a_full_list(parts, low, high, total):
    every = itertools.combinations_with_replacement(range(high, low - 1, -1), parts)
    fitting = [split for split in every if sum(split) == total]
    assert list(_splits(total, parts, low, high)) == sorted(fitting, key=lambda split: sum(n * n for n in split))


def test_a_large_batch_of_many_classes_has_guesses_at_once(tmp_path):
    """Its label counts and lengths are far too many to list."""
    narrow = tiny_model("bert", "classification", layers=3, width=256)
    model = load_model(save_model(narrow.module, narrow.tokenizer, tmp_path), num_labels=30)
    texts, labels = [f"{word} " * (3 + n % 4) for n, word in enumerate(TEXTS[0].split() * 4)][:16], list(range(16))
    update = Client(model, known=("batch_size",)).update(texts, labels)
    assert total_tokens(update, model, 16) is not None
    guesses = gather(update, model, "test", 24)
    assert len(guesses) == 24
    assert sorted(guesses[0].labels) == labels


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


def test_a_step_size_that_cannot_be_is_said(tiny_bert):
    update = Client(tiny_bert, client="fedavg:lr=0.1").update(TEXTS, [0, 1, 1])
    client = update.manifest.client.model_copy(update={"lr": 1e-300})
    forged = dataclasses.replace(update, manifest=update.manifest.model_copy(update={"client": client}))
    with pytest.raises(GradleakError, match=r"size 1e-300.* infinite"):
        as_gradient(forged)


def test_small_steps_average_to_the_gradient(tiny_bert):
    """Weights that moved by tiny steps stand for the gradient of the whole batch."""
    gradient = Client(tiny_bert).update(TEXTS[:2], [0, 1])
    tiny_bert.module.double()
    try:
        moved = Client(tiny_bert, client="fedavg:epochs=2,batch=1,lr=1e-6").update(TEXTS[:2], [0, 1])
    finally:
        tiny_bert.module.float()
    estimate = as_gradient(moved).tensors
    for name, tensor in gradient.tensors.items():
        torch.testing.assert_close(estimate[name].float(), tensor, rtol=1e-3, atol=1e-5)


def test_special_tokens_are_in_place_and_fixed(tiny):
    labels = [0, 1, 1] if tiny.task == "classification" else None
    update = Client(tiny, TOLD).update(TEXTS, labels)
    dummies, fixed = empty_dummies(tiny, gather(update, tiny, "test", 1), [0])
    batch = tiny.encode(TEXTS)
    assert torch.equal(dummies.mask[0], batch.mask)
    framed = fixed[0] & batch.mask
    assert int(framed.sum()) == 3 * (len(tiny.prefix) + len(tiny.suffix))
    torch.testing.assert_close(dummies.embeds[0][framed], tiny.embed(batch.ids)[framed])


def test_nearest_finds_every_token_and_no_special_one(tiny):
    vocabulary = Vocabulary.of(tiny)
    tokens, cosines = vocabulary.nearest(3.0 * tiny.token_embedding[vocabulary.ids])
    assert torch.equal(tokens, vocabulary.ids)
    torch.testing.assert_close(cosines, torch.ones_like(cosines), rtol=1e-4, atol=1e-4)
    assert not set(vocabulary.ids.tolist()) & set(tiny.tokenizer.all_special_ids)
