"""Which tokens can have stood at which positions: those whose first-layer input lies in the update's span."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.attacks.spans.probe import Probe
from gradleak.attacks.spans.spans import Span
from gradleak.core.budget import Budget
from gradleak.models.text import TextModel

# Inputs are first tested against this many random directions of the complement, which most fail at once.
SCREEN = 16
SCREEN_LIMIT = 0.05
# Inputs computed at a time, and the numbers that they may have together: embedding them takes five times that, which
# is to stay in a processor's cache.
CHUNK, NUMBERS = 60_000, 1 << 20


def first_inputs(model: TextModel, tokens: Tensor, length: int, start: int = 0) -> Tensor:
    """What the first attention layer sees of each token at each position from `start` on: (tokens, positions, width).

    Nothing has been mixed there yet, so a row may hold the same token everywhere.
    """
    ids = tokens[:, None].expand(-1, length)
    where = {"position_ids": torch.arange(start, start + length, device=ids.device)[None]} if start else {}
    with torch.no_grad():
        return Probe(model, [model.adapter.parts[0]["query"]])(input_ids=ids, mask=torch.ones_like(ids), **where)[0]


def fitting(
    model: TextModel, span: Span, tokens: Tensor, length: int, start: int = 0, budget: Budget | None = None
) -> Tensor:
    """(tokens, positions): whether the token at that position lies in the span, up to numerical noise.

    Where a budget ends first, the tokens that were not tested count as not fitting.
    """
    fits = torch.zeros(len(tokens), length, dtype=torch.bool, device=tokens.device)
    test, chunk = Membership(span), min(CHUNK, NUMBERS // model.width)
    for rows in torch.arange(len(tokens), device=tokens.device).split(max(1, chunk // length)):
        if budget is not None and budget.over:
            break
        inputs = first_inputs(model, tokens[rows], length, start)
        # An embedding of zeros, such as that of a token that also pads, is in every span.
        fits[rows] = test(inputs) | (inputs.norm(dim=-1) == 0)
    return fits


class Membership:
    """Tests which of many fp32 states lie in a span: a rough test that most fail, then an exact test."""

    def __init__(self, span: Span) -> None:
        generator = torch.Generator().manual_seed(0)
        mix = torch.randn(len(span.complement), SCREEN, generator=generator, dtype=torch.float64)
        self.span, self.rough = span, max(SCREEN_LIMIT, 2 * (span.reach or 0.0))
        screen = span.complement.T @ (mix.to(span.complement) / SCREEN**0.5)
        self.screen = (screen if span.map is None else span.map.to(screen).T @ screen).float()

    def __call__(self, states: Tensor) -> Tensor:
        sizes = states.norm(dim=-1) if self.span.map is None else (states @ self.span.map.to(states).T).norm(dim=-1)
        near = (states @ self.screen.to(states)).norm(dim=-1) < self.rough * sizes
        kept = states[near]
        return near.masked_scatter(near, self.span.distances(kept) <= self.span.limits(kept))


@dataclass(frozen=True)
class Choices:
    """For every position the tokens it may hold, padded to equal width, with a weight each (0: not allowed)."""

    tokens: Tensor
    weights: Tensor
    inputs: Tensor

    @property
    def allowed(self) -> Tensor:
        return self.weights > 0

    @classmethod
    def of(cls, model: TextModel, tokens: Tensor, weights: Tensor) -> Choices:
        """From (tokens,) ids and their (tokens, positions) weights."""
        length = weights.shape[1]
        most = min(len(tokens), max(1, int((weights > 0).sum(dim=0).max())))
        best = weights.T.topk(most, dim=1)
        inputs = first_inputs(model, tokens, length).transpose(0, 1)
        picked = inputs.gather(1, best.indices[..., None].expand(-1, -1, inputs.shape[-1]))
        return cls(tokens[best.indices], best.values, picked)

    @classmethod
    def anywhere(cls, model: TextModel, tokens: Tensor, length: int) -> Choices:
        """These tokens at every position, in the same order; the first layer sees them alike wherever they stand."""
        inputs = first_inputs(model, tokens, 1)[:, 0] if len(tokens) else model.embed(tokens)
        weights = torch.ones(length, len(tokens), device=tokens.device)
        return cls(tokens.expand(length, -1), weights, inputs.expand(length, -1, -1))

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Random choices, (count, positions), as indices; the likelier the more often."""
        usable = torch.where(self.allowed.any(dim=1, keepdim=True), self.weights, torch.ones_like(self.weights))
        return torch.multinomial(usable.float().cpu(), count, replacement=True, generator=generator).T.to(
            self.tokens.device
        )
