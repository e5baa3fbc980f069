"""The start of the search: the best of many random draws, then the best order of its tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from gradleak.core.budget import Budget
from gradleak.core.progress import Progress
from gradleak.matching.dummies import Dummies
from gradleak.matching.engine import Engine

# Proposals of a row that are judged in a call.
AT_ONCE = 25
# Proposals of all rows together between two looks at the budget: guesses at lengths can be a hundred rows.
MOST = 400


class InitSettings(Protocol):
    @property
    def init_draws(self) -> int: ...
    @property
    def init_orders(self) -> int: ...
    @property
    def init_rescale(self) -> bool: ...


def best_initial(
    engine: Engine,
    frame: Dummies,
    fixed: Tensor,
    settings: InitSettings,
    mean_norm: float,
    generators: Sequence[torch.Generator],
    hinted: Sequence[Tensor | None],
    budget: Budget,
    progress: Progress,
) -> Dummies:
    """Fill the free positions of every row: draws from N(0, I), orders of the best draw, then a common scale.

    A row with hints, embeddings of likely tokens as (positions, tokens, width), draws from these instead.
    A single draw without orders is taken as it comes, which saves the evaluation: that is how DLG and TAG start.
    """
    free = ~fixed[..., None]
    total = settings.init_draws + settings.init_orders

    def draw(row: int) -> Tensor:
        # As wide as this row alone needs, so that its draws do not depend on its neighbours' lengths.
        width = int(frame.mask[row].sum(dim=1).max())
        noise = torch.zeros(frame.embeds.shape[1:])
        hint = hinted[row]
        if hint is None:
            noise[:, :width] = torch.randn(noise[:, :width].shape, generator=generators[row])
            return torch.where(free[row], noise.to(frame.embeds), frame.embeds[row])
        picks = _picks(len(noise), width, hint.shape[1], generators[row], first=not drawn[row]).to(hint.device)
        drawn[row] = True
        likely = noise.to(frame.embeds)
        likely[:, :width] = hint[torch.arange(width, device=hint.device), picks]
        return torch.where(free[row], likely, frame.embeds[row])

    def shuffle(row: int) -> Tensor:
        moved = start.embeds[row].clone()
        for b in range(len(moved)):
            places = (~fixed[row, b]).nonzero()[:, 0]
            order = places[torch.randperm(len(places), generator=generators[row]).to(places.device)]
            moved[b, places] = start.embeds[row, b, order]
        return moved

    drawn = [False] * len(frame)
    start = frame.with_embeds(torch.stack([draw(row) for row in range(len(frame))]))
    if total > 1:
        losses = engine.values(start)
        steps = _Steps(progress, total)
        start, losses = _improve(engine, start, losses, draw, settings.init_draws - 1, budget, steps)
        start, _ = _improve(engine, start, losses, shuffle, settings.init_orders, budget, steps)
    if settings.init_rescale:
        scaled = start.embeds / start.embeds.norm(dim=-1, keepdim=True).clamp_min(1e-12) * mean_norm
        start = start.with_embeds(torch.where(free, scaled, start.embeds))
    return start


def _picks(sentences: int, width: int, count: int, generator: torch.Generator, *, first: bool) -> Tensor:
    """Ranks of hinted tokens for every place: at first the best, each sentence the next best of the one before."""
    if first:
        return torch.arange(sentences).clamp_max(count - 1)[:, None].expand(-1, width)
    return (count * torch.rand(sentences, width, generator=generator) ** 3).long()


class _Steps:
    """Counts proposals over several rounds."""

    def __init__(self, progress: Progress, total: int) -> None:
        self.progress, self.total, self.done = progress, total, 0

    def add(self, count: int, losses: Tensor) -> None:
        self.done += count
        self.progress.advance(self.done / self.total, loss=float(losses.mean()))


def _improve(
    engine: Engine,
    best: Dummies,
    losses: Tensor,
    propose: Callable[[int], Tensor],
    count: int,
    budget: Budget,
    steps: _Steps,
) -> tuple[Dummies, Tensor]:
    """Judge `count` proposals of every row; every row keeps its best."""
    embeds = best.embeds
    portion = max(1, min(AT_ONCE, MOST // len(best)))
    done = 0
    while done < count and not (budget.over if done % AT_ONCE else budget.tick()):
        many = min(portion, AT_ONCE - done % AT_ONCE, count - done)
        guesses = torch.stack([propose(row) for row in range(len(best)) for _ in range(many)])
        values = engine.values(best.repeat(many).with_embeds(guesses)).view(len(best), many)
        lowest, which = values.min(dim=1)
        better = lowest < losses
        chosen = guesses.view(len(best), many, *guesses.shape[1:])[torch.arange(len(best)), which]
        embeds = torch.where(better[:, None, None, None], chosen, embeds)
        losses = torch.where(better, lowest, losses)
        steps.add(many, losses)
        done += many
    return best.with_embeds(embeds), losses
