"""The states of many next tokens, all side by side after the same prefix."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradleak.attacks.soft.background import Spot
from gradleak.attacks.soft.directions import Observed
from gradleak.attacks.spans.probe import Probe
from gradleak.models.text import TextModel

# Rows of nonsense, and their tokens, after which it is seen how well a token fits anywhere.
CONTEXTS, CONTEXT_LENGTH = 8, 8
SIDE_BY_SIDE = 256


@torch.no_grad()
def continued(model: TextModel, spots: Sequence[Spot], prefixes: Tensor, tokens: Tensor) -> list[Tensor]:
    """What every spot sees of each token after its prefix, (prefixes, tokens, width).

    `prefixes` are (prefixes, length) and `tokens` (prefixes, tokens): each token sees its prefix and itself only, so
    that all of them go through the model with a single pass over the prefix.
    """
    length, total = prefixes.shape[1], prefixes.shape[1] + tokens.shape[1]
    sees = torch.ones(total, total, dtype=torch.bool, device=prefixes.device).tril()
    sees[length:, length:] = torch.eye(tokens.shape[1], dtype=torch.bool, device=prefixes.device)
    return _run(
        model, spots, torch.cat([prefixes, tokens], dim=1), sees, torch.arange(total).clamp_max(length), length
    )


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
    places = torch.tensor([*range(length), *(place + 1 for place in parents)])
    ids = torch.tensor([[*row, *flat]], device=model.device)
    return [seen[0] for seen in _run(model, spots, ids, sees.to(model.device), places, length)]


def usual_scores(model: TextModel, observed: Observed, bag: Tensor, seed: int) -> Tensor:
    """The scores that each token of a bag has after nonsense made of the bag, on average, (bag, spots)."""
    generator = torch.Generator().manual_seed(seed)
    drawn = bag[torch.randint(len(bag), (CONTEXTS, CONTEXT_LENGTH), generator=generator).to(bag.device)]
    parts = [
        observed.scores(continued(model, observed.background.spots, drawn, some.expand(CONTEXTS, -1))).mean(dim=0)
        for some in bag.split(SIDE_BY_SIDE)
    ]
    return torch.cat(parts)


def _run(
    model: TextModel, spots: Sequence[Spot], ids: Tensor, sees: Tensor, places: Tensor, length: int
) -> list[Tensor]:
    table = model.token_embedding
    blocked = torch.zeros(sees.shape, dtype=table.dtype, device=ids.device)
    blocked.masked_fill_(~sees, torch.finfo(table.dtype).min)
    mask = blocked[None, None].expand(len(ids), -1, -1, -1)
    probe = Probe(model, [spot.parts[0] for spot in spots])
    return [seen[:, length:] for seen in probe(input_ids=ids, mask=mask, position_ids=places[None].to(ids.device))]
