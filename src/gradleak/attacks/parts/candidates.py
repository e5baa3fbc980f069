"""Which tokens can have stood at which positions: those whose first-layer input lies in the update's span."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from gradleak.attacks.parts.probe import Probe
from gradleak.attacks.parts.spans import Span
from gradleak.models.target import TargetModel

# A distance is noise up to so many times what noise is expected to give.
TOLERANCE = 10.0
# Inputs are first tested against this many random directions of the complement, which most fail at once.
SCREEN = 16
SCREEN_LIMIT = 0.05
# Inputs computed in one go.
CHUNK = 60_000


def first_inputs(model: TargetModel, tokens: Tensor, length: int) -> Tensor:
    """What the first attention layer sees of each token at each position: (tokens, positions, width)."""
    ids = tokens[:, None].expand(-1, length)
    with torch.no_grad():
        return Probe(model, [model.adapter.parts[0]["query"]])(input_ids=ids, mask=torch.ones_like(ids))[0]


def fitting(model: TargetModel, span: Span, tokens: Tensor, length: int) -> Tensor:
    """(tokens, positions): whether the token at that position lies in the span, up to numerical noise."""
    generator = torch.Generator().manual_seed(0)
    mix = torch.randn(len(span.complement), SCREEN, generator=generator, dtype=torch.float64)
    mix = mix.to(span.complement) * (1 / SCREEN) ** 0.5
    screen = (span.complement.T @ mix).to(model.word_table)
    fits = torch.zeros(len(tokens), length, dtype=torch.bool, device=tokens.device)
    for rows in torch.arange(len(tokens), device=tokens.device).split(max(1, CHUNK // length)):
        inputs = first_inputs(model, tokens[rows], length)
        near = (inputs @ screen).norm(dim=-1) < SCREEN_LIMIT * inputs.norm(dim=-1)
        states = inputs[near]
        fits[rows] = near.masked_scatter(near, span.distances(states) <= TOLERANCE * span.floors(states))
    return fits


@dataclass(frozen=True)
class Choices:
    """For every position the tokens it may hold, padded to one width, with a weight each (0: not allowed)."""

    tokens: Tensor
    weights: Tensor
    inputs: Tensor

    @property
    def allowed(self) -> Tensor:
        return self.weights > 0

    @classmethod
    def of(cls, model: TargetModel, tokens: Tensor, weights: Tensor) -> Choices:
        """From (tokens,) ids and their (tokens, positions) weights."""
        length = weights.shape[1]
        most = max(1, int((weights > 0).sum(dim=0).max()))
        best = weights.T.topk(most, dim=1)
        inputs = first_inputs(model, tokens, length).transpose(0, 1)
        picked = inputs.gather(1, best.indices[..., None].expand(-1, -1, inputs.shape[-1]))
        return cls(tokens[best.indices], best.values, picked)

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Random choices, (count, positions), as indices; likelier ones more often."""
        usable = F.pad(self.weights, (0, 0)).clamp_min(0)
        usable = torch.where(usable.sum(dim=1, keepdim=True) > 0, usable, torch.ones_like(usable))
        return torch.multinomial(usable.float().cpu(), count, replacement=True, generator=generator).T.to(
            self.tokens.device
        )
