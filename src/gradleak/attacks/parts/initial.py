"""Where the search starts: the best of many random draws, then the best order of its tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from gradleak.budget import Budget
from gradleak.matching.dummies import Dummies
from gradleak.progress import Progress


class Engine(Protocol):
    """The part of a matching engine that a start needs."""

    def values(self, dummies: Dummies) -> Tensor: ...


class StartSettings(Protocol):
    @property
    def init_draws(self) -> int: ...
    @property
    def init_orders(self) -> int: ...
    @property
    def init_rescale(self) -> bool: ...


def best_start(
    engine: Engine,
    frame: Dummies,
    fixed: Tensor,
    settings: StartSettings,
    mean_norm: float,
    generators: Sequence[torch.Generator],
    budget: Budget,
    progress: Progress,
) -> Dummies:
    """Fill the free positions of every row: draws from N(0, I), orders of the best draw, then a common scale.

    One draw without orders is taken as it comes, which saves the evaluation: that is how DLG and TAG start.
    """
    free = ~fixed[..., None]
    total = settings.init_draws + settings.init_orders

    def draw(_: Dummies) -> Tensor:
        noise = torch.zeros_like(frame.embeds)
        for k, generator in enumerate(generators):
            # As wide as this row alone needs, so that its draws do not depend on its neighbours' lengths.
            batch, width, size = noise.shape[1], int(frame.mask[k].sum(dim=1).max()), noise.shape[3]
            noise[k, :, :width] = torch.randn(batch, width, size, generator=generator).to(noise)
        return torch.where(free, noise, frame.embeds)

    def shuffle(current: Dummies) -> Tensor:
        moved = current.embeds.clone()
        for k, generator in enumerate(generators):
            for b in range(moved.shape[1]):
                places = (~fixed[k, b]).nonzero()[:, 0]
                order = places[torch.randperm(len(places), generator=generator).to(places.device)]
                moved[k, b, places] = current.embeds[k, b, order]
        return moved

    start = frame.with_embeds(draw(frame))
    if total > 1:
        losses = engine.values(start)
        start, losses = _improve(engine, start, losses, draw, settings.init_draws - 1, (1, total), budget, progress)
        done = (settings.init_draws, total)
        start, _ = _improve(engine, start, losses, shuffle, settings.init_orders, done, budget, progress)
    if settings.init_rescale:
        scaled = start.embeds / start.embeds.norm(dim=-1, keepdim=True).clamp_min(1e-12) * mean_norm
        start = start.with_embeds(torch.where(free, scaled, start.embeds))
    return start


def _improve(
    engine: Engine,
    best: Dummies,
    losses: Tensor,
    propose: Callable[[Dummies], Tensor],
    rounds: int,
    done_of: tuple[int, int],
    budget: Budget,
    progress: Progress,
) -> tuple[Dummies, Tensor]:
    """Propose again and again; every row keeps its best."""
    base = best
    for number in range(rounds):
        if budget.over:
            break
        guess = base.with_embeds(propose(base))
        values = engine.values(guess)
        better = values < losses
        kept = torch.where(better[:, None, None, None], guess.embeds, best.embeds)
        best, losses = best.with_embeds(kept), torch.where(better, values, losses)
        progress.advance((done_of[0] + number) / done_of[1], loss=float(losses.mean()))
    return best, losses
