"""Choosing the best of many candidates without judging them all.

A candidate's score is its gradient distance plus the weighted loss of the prior. The prior is cheap and the
distance is never negative, so a candidate whose prior loss alone exceeds the best score so far cannot win and needs
no gradient. The choice is exactly that of full scoring.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.matching.dummies import Dummies
from gradleak.matching.engine import Engine

# How many of the prior's favourites are judged first, to set a limit for the others.
FAVOURITES = 12


@dataclass(frozen=True)
class Proposals:
    """Candidates for an update: whole guesses, and the prior's loss per token of each. The first is as it is now."""

    guesses: Dummies
    nll: Tensor


def choose(engine: Engine, proposals: Sequence[Proposals], prior_weight: float) -> list[int]:
    """For every update the number of its best candidate; of equals, the first."""
    scores = [torch.full_like(p.nll, float("inf")) for p in proposals]
    favourites = [_favourites(p.nll) for p in proposals]
    _judge(engine, proposals, favourites, prior_weight, scores)
    # Rounding in the engine may push a distance of zero a little below it.
    hopeful = [
        ((prior_weight * p.nll < s.min() + 1e-6) & s.isinf()).nonzero()[:, 0]
        for p, s in zip(proposals, scores, strict=True)
    ]
    _judge(engine, proposals, hopeful, prior_weight, scores)
    return [int(s.argmin()) for s in scores]


def _favourites(nll: Tensor) -> Tensor:
    best = nll.argsort(stable=True)[:FAVOURITES]
    present = torch.zeros(1, dtype=torch.long, device=nll.device)
    return torch.unique(torch.cat([present, best]))


def _judge(
    engine: Engine,
    proposals: Sequence[Proposals],
    chosen: Sequence[Tensor],
    prior_weight: float,
    scores: Sequence[Tensor],
) -> None:
    """Score the chosen candidates of all updates in a single call."""
    parts = [p.guesses.take(which) for p, which in zip(proposals, chosen, strict=True) if len(which)]
    if not parts:
        return
    values = engine.values(Dummies.concatenate(parts))
    first = 0
    for proposal, which, score in zip(proposals, chosen, scores, strict=True):
        score[which] = values[first : first + len(which)] + prior_weight * proposal.nll[which]
        first += len(which)
