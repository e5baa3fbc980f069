"""How beams are shared out and given up: pure functions of tokens and values."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradleak.attacks.soft.coefficients import Match
from gradleak.attacks.soft.search import ALIKE_IN, FEWEST, MOST_OF_ONE, Written, _better_half, _pick, distinct

VALUES = st.floats(-20, 20, allow_nan=False)


def written(tokens: list[int], values: list[float]) -> Written:
    return Written(tuple(tokens), tuple(values))


@given(st.lists(st.tuples(st.integers(0, 20), VALUES), min_size=1, max_size=40))
def test_the_better_half_of_openings_has_the_best_sentence_of_all(drawn: list[tuple[int, float]]) -> None:
    alive = [written([first, 1, 2], [0.0, value]) for first, value in drawn]
    kept = _better_half(alive, given=1)
    openings = {sentence.tokens[:1] for sentence in alive}
    assert len(kept) == max((len(openings) + 1) // 2, min(FEWEST, len(openings)))
    assert max(alive, key=lambda sentence: sentence.total).total == max(
        sentence.total for sentence in alive if sentence.tokens[:1] in kept
    )


@given(st.lists(VALUES, min_size=8, max_size=8), st.integers(1, 200))
def test_beams_of_one_opening_end_differently(values: list[float], beams: int) -> None:
    alive = [written([0, 1, 2, 3], [1.0] * 3), written([0, 4, 2, 3], [1.0] * 3)]
    bag, columns = torch.arange(10, 14), torch.arange(4).expand(2, 4)
    picked = _pick(alive, columns, torch.tensor(values).view(2, 4), bag, beams, given=1)
    grown = [sentence.tokens for _, sentence in picked]
    assert 1 <= len(picked) <= min(beams, MOST_OF_ONE)
    assert len({tokens[-ALIKE_IN:] for tokens in grown}) == len(grown)
    assert all(sentence.tokens[:-1] == alive[row].tokens for row, sentence in picked)
    # The best choice after either prefix leaves least doubt.
    sure = max(torch.tensor(values).view(2, 4).softmax(dim=1).flatten().tolist())
    assert picked[0][1].doubt == pytest.approx(-math.log(sure), abs=1e-4)


def test_straying_into_another_sentence_does_not_pay() -> None:
    """Much that speaks for any token after one prefix does not push out the one sure token after another."""
    alive = [written([0, 1, 2, 3], [1.0] * 3), written([0, 1, 2, 4], [1.0] * 3)]
    values = torch.tensor([[12.0, 11.9, 11.8], [0.5, -9.0, -9.0]])
    picked = _pick(alive, torch.arange(3).expand(2, 3), values, torch.arange(10, 13), beams=1, given=1)
    assert [sentence.tokens for _, sentence in picked] == [(0, 1, 2, 4, 10)]


def test_a_sentence_goes_on_past_its_evidence_and_is_compared_without_that() -> None:
    right, wrong = written([1, 2, 3, 4, 5, 6], [3, 3, 3, 3, -9]), written([7, 2, 3, 4, 5], [1, 1, 1, 1])
    assert distinct([wrong, right]) == [right]


def test_the_beginning_is_alike_even_if_the_rest_is_not() -> None:
    match = Match(0.0, 0, (1.0, 1.0, 0.9, 0.9, 0.9, -0.5, -0.5, -0.7))
    assert match.beginning > 0.9 > match.likeness
    assert Match(0.0, 0, ()).beginning == 0.0
