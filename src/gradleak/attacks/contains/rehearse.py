"""A rehearsal of the client: its rule on public sentences whose gradients are known, with no pass of the model.

The gradients stay those of one place, so a rehearsal takes no account of how they change along the way. It shows what
the rule makes of a sentence: how much less a late step of AdamW counts than the first, what clipping and the division
by each number's own size leave.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from itertools import cycle, islice

import torch
from torch import Tensor

from gradleak.updates.client_rule import ClientRule

# Sentences of a client of which nobody told how many it has.
UNTOLD = 8


def client_size(rule: ClientRule, known: int | None) -> int:
    """How many sentences a client has: as told, or as many as its steps take.

    >>> client_size(ClientRule.parse("adamw:steps=10,batch=16"), None)
    160
    """
    if known is not None:
        return known
    return rule.steps * rule.batch * rule.accumulate if rule.local and rule.steps else max(rule.batch, UNTOLD)


def shrunk(rule: ClientRule, size: int, most: int) -> tuple[ClientRule, int]:
    """The same rule for fewer sentences, if there are not enough of them: as many steps, smaller batches."""
    if size <= most:
        return rule, size
    batch = max(1, rule.batch * most // size)
    return rule.model_copy(update={"batch": batch}), most


def rehearsed(rows: Tensor, weights: Sequence[float], rule: ClientRule) -> Tensor:
    """What a client's update would be: sentences in order, each with its gradient and its weight in a mean.

    Without weight decay, which `without_decay` takes out of real updates.
    """
    weight = torch.tensor(weights)
    if not rule.local:
        return _clipped(_mean(rows, weight, range(len(rows))), rule)
    first, second = torch.zeros(rows.shape[1]), torch.zeros(rows.shape[1])
    moved = torch.zeros(rows.shape[1])
    for step, (rate, parts) in enumerate(zip(rule.rates(len(rows)), _steps(len(rows), rule), strict=True), start=1):
        gradient = torch.stack([_mean(rows, weight, part) for part in parts]).mean(dim=0)
        gradient = _clipped(gradient, rule)
        if rule.adaptive:
            first.lerp_(gradient, 1 - rule.betas[0])
            second.lerp_(gradient.square(), 1 - rule.betas[1])
            size = (second / (1 - rule.betas[1] ** step)).sqrt_() + rule.eps
            moved += rate * first / (1 - rule.betas[0] ** step) / size
        else:
            first.mul_(rule.momentum).add_(gradient)
            moved += rate * first
    return moved


def without_decay(moved: Tensor, before: Tensor, rule: ClientRule, sentences: int) -> Tensor:
    """Moved weights without what AdamW's decay moved them by, which does not depend on any sentence."""
    if rule.name != "adamw" or not rule.wd:
        return moved
    kept = math.prod(1 - rate * rule.wd for rate in rule.rates(sentences))
    return moved - (1 - kept) * before


def draw(members: Sequence[int], others: Sequence[int], size: int, seed: int) -> list[int]:
    """So many sentences in random order: half of the first kind at most, then the second, then more of the first."""
    chance = random.Random(seed)
    own, rest = chance.sample(members, len(members)), chance.sample(others, len(others))
    half = min(size, len(own) // 2)
    chosen = (own[:half] + rest + own[half:])[:size]
    chance.shuffle(chosen)
    return chosen


def _steps(sentences: int, rule: ClientRule) -> list[list[range]]:
    """For every step the mini-batches whose mean gradient makes it, in order and, if need be, again and again."""
    one_pass = [range(first, min(first + rule.batch, sentences)) for first in range(0, sentences, rule.batch)]
    if rule.steps is not None:
        endless = cycle(one_pass)
        return [list(islice(endless, rule.accumulate)) for _ in range(rule.steps)]
    groups = [one_pass[first : first + rule.accumulate] for first in range(0, len(one_pass), rule.accumulate)]
    return groups * rule.epochs


def _mean(rows: Tensor, weight: Tensor, which: range) -> Tensor:
    some = slice(which.start, which.stop)
    share = weight[some] / weight[some].sum()
    return share @ rows[some].float()


def _clipped(gradient: Tensor, rule: ClientRule) -> Tensor:
    """Clipped by the norm of these numbers alone; of a full model they are a part, so this clips less."""
    if rule.clip is None:
        return gradient
    return gradient * min(1.0, rule.clip / max(float(gradient.norm()), 1e-30))
