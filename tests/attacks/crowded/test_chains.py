"""Sentences followed from one token that occurs once to the next, in batches with more tokens than dimensions."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import tiny_model

from gradleak import Client, TextModel, attack
from gradleak.attacks.crowded.attended import LEFT_OVER, Attended, attention_shows
from gradleak.attacks.crowded.chains import Chains
from gradleak.attacks.crowded.reading import crowded
from gradleak.core.budget import Budget
from gradleak.data.texts import read_data
from gradleak.updates.update import Update

TEXTS = [row.text for row in read_data()][:6]
# Those whose keys are turned by position and are otherwise as their matrix makes them.
TURNED = ("llama", "qwen2", "mistral", "gpt_neox", "phi3", "smollm3")


def rows_of(model: TextModel, texts: list[str] = TEXTS) -> list[tuple[int, ...]]:
    return [tuple(row) for row in model.encode(texts).sentences()]


def seen(model: TextModel) -> tuple[Attended, list[list[int]], Counter[int]]:
    """The tests of a batch, its sentences as numbers without their last tokens, and how often each token occurs."""
    rows = [row[:-1] for row in rows_of(model)]
    tokens = sorted({token for row in rows for token in row})
    attended = Attended(model, Client(model).update(TEXTS).tensors, tokens, 64)
    numbers = [[tokens.index(token) for token in row] for row in rows]
    return attended, numbers, Counter(number for row in numbers for number in row)


@pytest.mark.parametrize("family", TURNED)
def test_right_beginnings_and_ends_leave_nothing_over(family: str) -> None:
    model = tiny_model(family, "causal-lm", layers=2, width=128)
    attended, rows, counts = seen(model)
    assert attention_shows(model, Client(model).update(TEXTS).tensors, attended.tokens)
    tried = 0
    # Beyond a window the first token no longer matters, by which it is known that it is the first.
    longest = min(attended.longest, getattr(model.module.config, "sliding_window", None) or attended.longest)
    for row in rows:
        places = [n for n, token in enumerate(row) if counts[token] == 1 and 1 < n < longest]
        for place in places:
            assert attended.begins(row[: place + 1])
            assert float(attended.next_ones(row[:place])[row[place]]) < LEFT_OVER
            assert float(attended.next_twos(row[: place - 1])[row[place - 1], row[place]]) < LEFT_OVER
            wrong = [*row[: place - 1], next(n for n in rows[0] if n != row[place - 1]), row[place]]
            assert not attended.begins(wrong)
            tried += 1
        last = max((place for place in places if len(row) - place < 8), default=None)
        if last is not None and last < len(row) - 1:
            assert attended.left_over_behind(row, last) < attended.left_over_behind(row[:-1], last)
    assert tried > (20 if longest > 20 else 5)


@pytest.mark.parametrize("family", ["gpt2", "opt"])
def test_models_that_learn_positions_are_left_alone(family: str) -> None:
    model = tiny_model(family, "causal-lm", width=128)
    tokens = sorted({token for row in rows_of(model) for token in row})
    assert not attention_shows(model, Client(model).update(TEXTS).tensors, tokens)


@pytest.fixture(scope="module")
def model() -> TextModel:
    return tiny_model("llama", "causal-lm", layers=4, width=112)


@pytest.fixture(scope="module")
def update(model: TextModel) -> Update:
    return Client(model).update(TEXTS)


def test_all_sentences_of_a_crowd_are_proved(model: TextModel, update: Update) -> None:
    assert crowded(model, update)
    rows = rows_of(model)
    told: list[int] = []
    bag = [token for token in {token for row in rows for token in row} if bool(model.text_tokens[token])]
    found = Chains(model, update, bag, 64, Budget()).run(lambda so_far: told.append(len(so_far.proved)))
    assert set(found.proved) == set(rows)
    assert found.complete
    assert told == sorted(told)


def test_tokens_of_which_nothing_is_left_leave_the_bag(model: TextModel, update: Update) -> None:
    """They were compared with what was left of them, not with what there had been, and all stayed."""
    rows = rows_of(model)
    chains = Chains(model, update, sorted({token for row in rows for token in row[:-1]}), 64, Budget())
    chains._round(lambda so_far: None)
    left = {token for row in rows if row not in chains.found.proved for token in row[:-1]}
    gone = {token for row in chains.found.proved for token in row[:-1]} - left
    assert gone
    assert not gone & set(chains.found.bag)
    assert left <= set(chains.found.bag)


@settings(max_examples=4, deadline=None)
@given(st.integers(0, 10_000))
def test_nothing_that_was_not_there_is_proved(model: TextModel, update: Update, seed: int) -> None:
    """Of a gradient from which a sentence was taken that was never in it."""
    from gradleak.attacks.soft.reading import without

    rows = rows_of(model)
    tokens = sorted({token for row in rows for token in row if bool(model.text_tokens[token])})
    order = torch.randperm(len(tokens), generator=torch.Generator().manual_seed(seed))[:9].tolist()
    strange = (*model.prefix, *(tokens[n] for n in order))
    left = without(model, update.tensors, strange, 1 / sum(len(row) - 1 for row in rows))
    found = Chains(model, Update(left, update.manifest), tokens, 64, Budget()).run(lambda so_far: None)
    assert not set(found.proved) - set(rows)


def test_soft_certifies_them(model: TextModel, update: Update) -> None:
    (found,) = attack(update, model, "soft", seed=0)
    assert {sentence.text for sentence in found.sentences if sentence.certified} == set(TEXTS)
    # With everything proved the bag is that of the sentences, no longer what seemed to be there at first.
    read = {token for row in rows_of(model) for token in model.content(row[:-1])}
    assert set(found.bag) == set(map(str, model.tokenizer.convert_ids_to_tokens(sorted(read))))
