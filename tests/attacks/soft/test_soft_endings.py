"""Sentences that are nearly right are repaired, and proved only where they are right."""

from __future__ import annotations

import pytest
import torch
from tiny import TEXTS, adapted_model

from gradleak import Client, TextModel
from gradleak.attacks.soft.coefficients import Coefficients, Match
from gradleak.attacks.soft.endings import Endings
from gradleak.attacks.soft.judge import untaught
from gradleak.attacks.soft.predictions import Predictions, comparison, views_of
from gradleak.attacks.soft.reading import beginnings
from gradleak.attacks.soft.rehearsal import gradient_of
from gradleak.attacks.soft.search import Written
from gradleak.core.budget import Budget

pytest.importorskip("peft")


@pytest.fixture(scope="module")
def model() -> TextModel:
    return adapted_model(layers=4, width=96, rank=14)


@pytest.fixture(scope="module")
def known(model: TextModel) -> tuple[list[tuple[int, ...]], Coefficients, Endings]:
    update = Client(model).update(TEXTS)
    rows = [tuple(row) for row in model.encode(TEXTS).sentences()]
    tokens = sorted({token for row in rows for token in row[:-1]})
    bag = torch.tensor([token for token in tokens if bool(model.text_tokens[token])])
    others = Client(model).update(["Nobody came.", "It rained all day."])
    compared = comparison(
        model,
        views_of(model, 1),
        [others.tensors],
        rows,
        lambda row, wanted: gradient_of(model, [row], wanted),
        Budget(),
    )
    predictions = Predictions.of(model, compared, update.tensors)
    endings = Endings(model, predictions, untaught(predictions.features), bag, beginnings(model, bag))
    return rows, Coefficients(model, update.tensors, tokens), endings


def written(tokens: tuple[int, ...]) -> Written:
    return Written(tokens, (3.0,) * (len(tokens) - 1))


@pytest.mark.parametrize("cut", [1, 2])
def test_the_end_is_found(known: tuple[list[tuple[int, ...]], Coefficients, Endings], cut: int) -> None:
    """Of a sentence without its last token, and of one that goes on into another sentence."""
    rows, coefficients, endings = known
    for row, other in zip(rows, rows[1:] + rows[:1], strict=True):
        sentence = written(row[:-1] if cut == 1 else (*row[:-1], *other[1:3]))
        attempt = endings.proved(sentence, coefficients)
        if not attempt[1].proved:
            attempt = endings.repaired(sentence, attempt, coefficients)
        assert attempt[0] == row
        assert attempt[1].proved


def test_edits_are_those_of_single_tokens_where_coefficients_are_least_alike(
    known: tuple[list[tuple[int, ...]], Coefficients, Endings], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, _, endings = known
    row = max(rows, key=len)
    place = len(row) // 2
    monkeypatch.setattr("gradleak.attacks.soft.endings.SWAPPED", 10_000)
    monkeypatch.setattr("gradleak.attacks.soft.endings.SUSPECTED", 1)
    twice = (*row[: place + 1], *row[place:])
    other = (*row[:place], row[1], *row[place + 1 :])
    missing = (*row[:place], *row[place + 1 :])
    # Each is made right again by an edit at the place that is least alike.
    for wrong in (twice, other, missing):
        cosines = tuple(-0.5 if n == place else 0.9 for n in range(len(wrong) - 1))
        lags = tuple(len(wrong) - 2 - n for n in range(len(wrong) - 1))
        assert row in set(endings._edited((wrong, Match(0.0, 0, cosines, lags))))
    # A token that was read once and stands twice is tried wherever it is.
    assert twice in set(endings._edited((row, Match(0.0, 0, (0.9,), (len(row) - 3,)))))
