"""How beams are shared out and given up: pure functions of tokens and values."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradleak.attacks.soft.coefficients import Match
from gradleak.attacks.soft.likeness import Reach
from gradleak.attacks.soft.search import (
    ALIKE_IN,
    LEAST_OF_ONE,
    MOST_OF_ONE,
    STALLED,
    Choice,
    Look,
    Written,
    _better_half,
    _pick,
    _promising,
    distinct,
)

VALUES = st.floats(-20, 20, allow_nan=False)


def written(tokens: list[int], values: list[float]) -> Written:
    return Written(tuple(tokens), tuple(values))


def choices(values: torch.Tensor) -> list[list[Choice]]:
    """The same tokens, 10 and so on, after every prefix, with these values."""
    doubts = -values.log_softmax(dim=1)
    return [
        [Choice(10 + column, float(values[row, column]), float(doubts[row, column])) for column in range(len(own))]
        for row, own in enumerate(values)
    ]


@given(st.lists(st.tuples(st.integers(0, 20), VALUES), min_size=1, max_size=40), st.integers(1, 9))
def test_the_better_half_of_openings_has_the_best_sentence_of_all(
    drawn: list[tuple[int, float]], fewest: int
) -> None:
    alive = [written([first, 1, 2], [0.0, value]) for first, value in drawn]
    kept = _better_half(alive, given=1, fewest=fewest)
    openings = {sentence.tokens[:1] for sentence in alive}
    assert len(kept) == max((len(openings) + 1) // 2, min(fewest, len(openings)))
    assert max(alive, key=lambda sentence: sentence.total).total == max(
        sentence.total for sentence in alive if sentence.tokens[:1] in kept
    )


@given(st.lists(VALUES, min_size=8, max_size=8), st.integers(1, 200))
def test_beams_of_one_opening_end_differently(values: list[float], beams: int) -> None:
    alive = [written([0, 1, 2, 3], [1.0] * 3), written([0, 4, 2, 3], [1.0] * 3)]
    picked = _pick(alive, choices(torch.tensor(values).view(2, 4)), beams, given=1)
    grown = [sentence.tokens for _, sentence in picked]
    assert 1 <= len(picked) <= min(max(beams, LEAST_OF_ONE), MOST_OF_ONE)
    assert len({tokens[-ALIKE_IN:] for tokens in grown}) == len(grown)
    assert all(sentence.tokens[:-1] == alive[row].tokens for row, sentence in picked)
    # The best choice after either prefix leaves least doubt.
    sure = max(torch.tensor(values).view(2, 4).softmax(dim=1).flatten().tolist())
    assert picked[0][1].doubt == pytest.approx(-math.log(sure), abs=1e-4)


def test_straying_into_another_sentence_does_not_pay() -> None:
    """Much that speaks for any token after one prefix does not push out the one sure token after another."""
    alive = [written([0, 1, 2, 3], [1.0] * 3), written([0, 1, 2, 4], [1.0] * 3)]
    values = torch.tensor([[12.0, 11.9, 11.8], [0.5, -9.0, -9.0]])
    picked = _pick(alive, choices(values), beams=1, given=1)
    assert picked[0][1].tokens == (0, 1, 2, 4, 10)


def test_a_sentence_goes_on_past_its_evidence_and_is_compared_without_that() -> None:
    right, wrong = written([1, 2, 3, 4, 5, 6], [3, 3, 3, 3, -9]), written([7, 2, 3, 4, 5], [1, 1, 1, 1])
    assert distinct([wrong, right]) == [right]


def test_a_long_sentence_is_not_given_up_for_its_beginning() -> None:
    """The mean cosine of "The equity increases" was higher than that of the sentence with one token missing."""
    short, long = Match(0.0, 0, (0.8, 0.8, 0.8)), Match(0.0, 0, (0.8, 0.8, 0.8, 0.7, 0.7, 0.75, 0.7))
    assert long.likeness < short.likeness
    assert long.rank > short.rank


def test_the_beginning_is_alike_even_if_the_rest_is_not() -> None:
    match = Match(0.0, 0, (1.0, 1.0, 0.9, 0.9, 0.9, -0.5, -0.5, -0.7))
    assert match.beginning > 0.9 > match.likeness
    assert Match(0.0, 0, ()).beginning == 0.0


@given(
    st.lists(st.lists(VALUES, min_size=7, max_size=7), min_size=1, max_size=9),
    st.floats(0, 9),
    st.integers(1, 9),
    st.integers(1, 9),
)
def test_a_look_has_every_row_once_and_its_likeliest_tokens_first(
    values: list[list[float]], margin: float, least: int, most: int
) -> None:
    rough = torch.tensor(values)
    looked = {
        row: own
        for rows, columns in Look(margin, min(least, most), most).at(rough)
        for row, own in zip(rows.tolist(), columns.tolist(), strict=True)
    }
    assert sorted(looked) == list(range(len(values)))
    for row, columns in looked.items():
        assert min(least, most, 7) <= len(columns) <= min(most, 7)
        assert len(set(columns)) == len(columns)
        seen, order = rough[row][columns].tolist(), rough[row].sort(descending=True).values.tolist()
        assert seen == order[: len(columns)]
        # Nothing within the margin is left out, but for the bound.
        assert len(columns) == min(most, 7) or order[len(columns)] < order[0] - margin + 1e-4


def test_openings_go_on_by_evidence_or_by_coefficients_until_these_reach_no_further() -> None:
    grown = [written([n, 1, 2, 3], [0.0, 0.0, float(total)]) for n, total in enumerate((9, 1, 2, 8))]
    reached = {(0,): [1.0], (1,): [7.0], (2,): [0.5], (3,): [9.0, *[5.0] * STALLED]}
    assert _promising(grown, 1, reached, 1) == {(0,), (1,)}


def test_a_sentence_that_nothing_speaks_for_still_has_a_beginning() -> None:
    """Ends are looked for from there on, and an empty beginning cannot be read."""
    sentence = written([1, 2, 3, 4], [-3, -3, -3])
    assert len(sentence.best.tokens) == 1
    assert sentence.end == 2
    assert replace(sentence, reach=Reach(5.0, 4)).end == 4
