"""States of many next tokens beside each other, against one full pass for each of them."""

from __future__ import annotations

import pytest
import torch
from tiny import tiny_model

from gradleak import TextModel
from gradleak.attacks.film.readers import ModelReader
from gradleak.attacks.soft.background import spots_of
from gradleak.attacks.soft.continuations import branches, continued
from gradleak.attacks.spans.probe import Probe

PREFIXES = torch.tensor([[5, 9, 14, 7], [21, 8, 5, 30], [9, 9, 6, 12]])
TOKENS = torch.tensor([[4, 9, 11, 5, 30], [7, 8, 5, 21, 6], [12, 9, 6, 3, 14]])


@pytest.fixture(scope="module")
def model() -> TextModel:
    return tiny_model("llama", "causal-lm", layers=4, width=48)


@torch.no_grad()
def plain_states(model: TextModel, row: list[int]) -> list[torch.Tensor]:
    """What every spot sees of the last token of a row that goes through the model by itself."""
    spots = spots_of(model, list(model.parameters()))
    ids = torch.tensor([row])
    seen = Probe(model, [spot.parts[0] for spot in spots])(input_ids=ids, mask=torch.ones_like(ids))
    return [states[0, -1] for states in seen]


def test_tokens_after_cached_prefixes_are_those_of_full_passes(model: TextModel) -> None:
    reader = ModelReader(model, torch.arange(40))
    reader.first(PREFIXES)
    found = continued(model, spots_of(model, list(model.parameters())), reader.cache, TOKENS)
    for row, prefix in enumerate(PREFIXES.tolist()):
        for place, token in enumerate(TOKENS[row].tolist()):
            for seen, wanted in zip(found, plain_states(model, [*prefix, token]), strict=True):
                torch.testing.assert_close(seen[row, place], wanted, rtol=1e-4, atol=1e-5)


def test_tokens_after_every_beginning_are_those_of_full_passes(model: TextModel) -> None:
    row, tokens = PREFIXES[0].tolist(), [[4, 9], [11], [5, 30, 7]]
    found = branches(model, spots_of(model, list(model.parameters())), row, tokens)
    asked = [(place, token) for place, own in enumerate(tokens) for token in own]
    for number, (place, token) in enumerate(asked):
        for seen, wanted in zip(found, plain_states(model, [*row[: place + 1], token]), strict=True):
            torch.testing.assert_close(seen[number], wanted, rtol=1e-4, atol=1e-5)
