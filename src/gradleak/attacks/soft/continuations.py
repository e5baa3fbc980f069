"""The states of many next tokens, all side by side after the same prefix."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gradleak.attacks.film.readers import ModelReader
from gradleak.attacks.soft.background import Spot
from gradleak.attacks.soft.directions import Observed
from gradleak.attacks.spans.probe import Probe
from gradleak.models.masks import Sees
from gradleak.models.text import TextModel

# Rows of nonsense, and their tokens, after which it is seen how well a token fits anywhere.
CONTEXTS, CONTEXT_LENGTH = 8, 8
SIDE_BY_SIDE = 256


@torch.no_grad()
def continued(model: TextModel, spots: Sequence[Spot], cache: Any, tokens: Tensor) -> list[Tensor]:
    """What every spot sees of each token after its prefix, (prefixes, tokens, width).

    `cache` has the keys and values of the prefixes, which are equally long, and is of no use afterwards; `tokens` are
    (prefixes, tokens): each sees its prefix and itself only.
    """
    length, count = cache.get_seq_length(), tokens.shape[1]
    sees = torch.ones(count, length + count, dtype=torch.bool, device=tokens.device)
    sees[:, length:] = torch.eye(count, dtype=torch.bool, device=tokens.device)
    places = torch.full((1, count), length, device=tokens.device)
    return _run(model, spots, tokens, sees, places, cache)


@torch.no_grad()
def branches(
    model: TextModel, spots: Sequence[Spot], row: Sequence[int], tokens: Sequence[Sequence[int]]
) -> list[Tensor]:
    """The same after every prefix of one row: `tokens[i]` stand after the first i + 1 tokens; (all tokens, width)."""
    parents = [place for place, own in enumerate(tokens) for _ in own]
    flat = [token for own in tokens for token in own]
    length, total = len(row), len(row) + len(flat)
    sees = torch.zeros(total, total, dtype=torch.bool)
    sees[:length, :length] = torch.ones(length, length, dtype=torch.bool).tril()
    after = torch.tensor(parents)[:, None] >= torch.arange(length)[None]
    sees[length:, :length] = after
    sees[length:, length:] = torch.eye(len(flat), dtype=torch.bool)
    places = torch.tensor([[*range(length), *(place + 1 for place in parents)]])
    ids = torch.tensor([[*row, *flat]], device=model.device)
    return [seen[0, length:] for seen in _run(model, spots, ids, sees.to(model.device), places)]


def usual_scores(model: TextModel, observed: Observed, bag: Tensor, seed: int) -> Tensor:
    """The scores that each token of a bag has after nonsense made of the bag, on average, (bag, spots)."""
    generator = torch.Generator().manual_seed(seed)
    drawn = bag[torch.randint(len(bag), (CONTEXTS, CONTEXT_LENGTH), generator=generator).to(bag.device)]
    reader = ModelReader(model, bag)
    reader.first(drawn)
    parts = []
    for some in bag.split(SIDE_BY_SIDE):
        cache = copy.deepcopy(reader.cache)
        states = continued(model, observed.background.spots, cache, some.expand(CONTEXTS, -1))
        parts.append(observed.scores(states).mean(dim=0))
    return torch.cat(parts)


def _run(
    model: TextModel, spots: Sequence[Spot], ids: Tensor, sees: Tensor, places: Tensor, cache: Any = None
) -> list[Tensor]:
    places = places.to(ids.device)
    probe = Probe(model, [spot.parts[0] for spot in spots])
    return probe(input_ids=ids, mask=Sees(sees, places[0]), position_ids=places, cache=cache)
