"""Sentences that are nearly right are repaired, and proved only where they are right."""

from __future__ import annotations

import pytest
import torch
from tiny import TEXTS, tiny_model

from gradleak import Client, TextModel, load_model
from gradleak.attacks.film.attribution import Attribution
from gradleak.attacks.soft.coefficients import Coefficients
from gradleak.attacks.soft.endings import Endings
from gradleak.attacks.soft.reading import beginnings
from gradleak.attacks.soft.rehearsal import UNTAUGHT
from gradleak.attacks.soft.search import Written

pytest.importorskip("peft")


@pytest.fixture(scope="module")
def model() -> TextModel:
    below = tiny_model("llama", "causal-lm", layers=4, width=96)
    return load_model(
        below.module, tokenizer=below.tokenizer, task="causal-lm", lora="r=14,targets=query+value,b=0.2"
    )


@pytest.fixture(scope="module")
def known(model: TextModel) -> tuple[list[tuple[int, ...]], Coefficients, Endings]:
    update = Client(model).update(TEXTS)
    rows = [tuple(row) for row in model.encode(TEXTS).sentences()]
    tokens = sorted({token for row in rows for token in row[:-1]})
    bag = torch.tensor([token for token in tokens if bool(model.text_tokens[token])])
    endings = Endings(model, Attribution(model, update), UNTAUGHT, bag, beginnings(model, bag))
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


def test_tokens_that_are_too_many_or_missing_inside_are_found(
    known: tuple[list[tuple[int, ...]], Coefficients, Endings],
) -> None:
    rows, coefficients, endings = known
    row = max(rows, key=len)
    place = len(row) // 2
    twice = (*row[: place + 1], *row[place:])
    for wrong in (twice, (*row[:place], row[1], *row[place + 1 :])):
        attempt = wrong, coefficients.match(wrong)
        assert not attempt[1].proved
        assert endings.repaired(written(wrong), attempt, coefficients)[0] == row
    # The other way round, a token that stands twice and was read once is among what is tried.
    assert twice in set(endings._edited((row, coefficients.match(row))))
