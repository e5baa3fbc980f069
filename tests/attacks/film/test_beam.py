"""Beam search with the attacked model."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gradleak import TextModel
from gradleak.attacks.film.beam import BeamSettings, Grown, NGrams, RemainingTokens, distinct, search
from gradleak.attacks.film.readers import ModelReader
from gradleak.bench.beam import WholeReader, _grown
from gradleak.core.budget import Budget


def greedy(model: TextModel, bag: Tensor, start: int, length: int) -> list[int]:
    """The plain way: the whole sentence through the whole model for every token."""
    tokens = [start]
    while len(tokens) < length:
        ids = torch.tensor([tokens])
        with torch.no_grad():
            logits = model.logits(ids=ids, mask=torch.ones_like(ids))[0, -1, bag]
        tokens.append(int(bag[logits.argmax()]))
    return tokens


def test_one_beam_is_greedy_search(writer: TextModel) -> None:
    bag = torch.arange(5, 60)
    settings = BeamSettings(beams=1, repeat=0, length=7, weight=0.0)
    (found,) = search(
        ModelReader(writer, bag),
        bag,
        [Grown((7,), (), ())],
        settings,
        ends=lambda token: False,
        forbidden=NGrams(2),
        budget=Budget(),
    )
    assert list(found.tokens) == greedy(writer, bag, 7, 7)


def test_a_search_keeps_to_its_rules(writer: TextModel) -> None:
    bag = torch.arange(10, 40)
    forbidden = NGrams(2)
    forbidden.add([10, 11, 12])
    settings = BeamSettings(beams=8, repeat=1, length=12, weight=0.0)
    found = search(
        ModelReader(writer, bag),
        bag,
        [Grown((token,), (), ()) for token in (10, 11, 12)],
        settings,
        ends=lambda token: token == 39,
        forbidden=forbidden,
        budget=Budget(),
    )
    assert found
    for one in found:
        assert set(one.tokens) <= set(bag.tolist())
        assert len(set(one.tokens)) == len(one.tokens)
        assert not {(10, 11), (11, 12)} & set(pairwise(one.tokens))
        assert 39 not in one.tokens[:-1]
        assert len(one.log_probs) == len(one.tokens) - 1


def test_without_shares_no_token_is_used_too_often_and_ends_come_late(writer: TextModel) -> None:
    bag = torch.arange(5, 40)
    limits = {token: 1 + token % 2 for token in bag.tolist()}
    settings = BeamSettings(beams=8, repeat=0, length=12, weight=0.0, least=6, limits=limits)
    found = search(
        ModelReader(writer, bag),
        bag,
        [Grown((7,), (), ()), Grown((8,), (), ())],
        settings,
        ends=lambda token: token % 3 == 0,
        forbidden=NGrams(4),
        budget=Budget(),
    )
    assert found
    for one in found:
        assert len(one.tokens) == 12 or (len(one.tokens) >= 6 and one.tokens[-1] % 3 == 0)
        assert all(one.tokens.count(token) <= limits[token] for token in one.tokens)


def test_distinct_keeps_the_best_of_what_overlaps() -> None:
    short = Grown((1, 2, 3, 4), (0, 0, 0), (1, 1, 1))
    whole = Grown((1, 2, 3, 4, 9), (0, 0, 0, 0), (1, 1, 1, 0.2))
    other = Grown((5, 6, 7, 8), (0, 0, 0), (0.5, 0.5, 0.5))
    assert distinct([other, short, whole], 3, lambda token: token == 9) == [whole, other]


@given(st.lists(st.integers(0, 5), min_size=2, max_size=12), st.integers(1, 4))
def test_ngrams_know_what_follows(tokens: list[int], size: int) -> None:
    grams = NGrams(size)
    grams.add(tokens)
    for end in range(size, len(tokens) + 1):
        assert tokens[end - 1] in grams.after(tokens[: end - 1])


@given(st.lists(st.integers(0, 5), min_size=1, max_size=10))
def test_remaining_tokens_give_a_sentence_once(tokens: list[int]) -> None:
    remaining = RemainingTokens({token: tokens.count(token) for token in tokens})
    assert remaining.take(tokens)
    assert not remaining.take(tokens)
    assert remaining.take([99])
    assert RemainingTokens({}).take(tokens)


def test_both_ways_of_searching_find_the_same(writer: TextModel) -> None:
    bag = torch.arange(5, 45)
    whole, cached = (_grown(kind(writer, bag), bag, beams=6, length=8) for kind in (WholeReader, ModelReader))
    assert [one.tokens for one in whole] == [one.tokens for one in cached]
    for one, other in zip(whole, cached, strict=True):
        assert one.log_probs == pytest.approx(other.log_probs, abs=1e-4)
