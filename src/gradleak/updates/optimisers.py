"""What optimisers do to weights beside following the gradient, and how exactly a weight shows its last step.

All of it follows from the client rule and the weights before, which the server sent.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from gradleak.updates.client_rule import ClientRule
from gradleak.updates.precision import DTYPES

# What the optimiser's own arithmetic adds to a step of size 1, in fp32.
ARITHMETIC = 1.5e-7


def trained(weight: Tensor, rule: ClientRule) -> Tensor:
    """The weights before, in the precision that they are trained in."""
    weight = weight.detach()
    return weight if rule.precision == "fp32" else weight.to(DTYPES[rule.precision])


def drifted(weight: Tensor, rule: ClientRule, rates: Sequence[float]) -> Tensor:
    """The weights after training in which no gradient reached them: only decay acted, on weights that decay.

    Step by step with the operations of torch's optimisers, so that a weight without a gradient comes out bit for bit.

    >>> drifted(torch.tensor([1.0, -2.0]), ClientRule(name="adamw", wd=0.5), [0.1, 0.1])
    tensor([ 0.9025, -1.8050])
    """
    after = trained(weight, rule).clone()
    moving: Tensor | None = None
    for rate in rates:
        if rule.name == "adamw":
            after.mul_(1 - rate * rule.wd)
            continue
        pull = torch.zeros_like(after).add(after, alpha=rule.wd)
        moving = pull if moving is None or not rule.momentum else moving.mul_(rule.momentum).add_(pull)
        after.add_(moving, alpha=-rate)
    return after


def gradient_weights(rule: ClientRule, rates: Sequence[float]) -> list[float]:
    """How much the gradient of every step moved the weights: through momentum the later steps repeat it.

    >>> gradient_weights(ClientRule(name="fedavg", momentum=0.5), [1.0, 1.0, 1.0])
    [1.75, 1.5, 1.0]
    """
    backwards = itertools.accumulate(reversed(rates), lambda later, rate: rate + rule.momentum * later)
    return list(backwards)[::-1]


def spacing(weight: Tensor) -> Tensor:
    """The distance to the next number of the weight's precision, as float64.

    >>> spacing(torch.tensor([1.0, 0.3])).tolist() == [2**-23, 2**-25]
    True
    """
    kind = torch.finfo(weight.dtype)
    exponent = torch.frexp(weight.float().abs().clamp_min(kind.tiny)).exponent - 1
    return torch.exp2(exponent.double()) * kind.eps


def rounding(weight: Tensor, moved: Tensor, rule: ClientRule, rate: float) -> Tensor:
    """How far off a step of Adam, of size 1, can be as the weights and the wire show it."""
    return grid(weight, moved, rule, rate) + ARITHMETIC


def grid(weight: Tensor, moved: Tensor, rule: ClientRule, rate: float) -> Tensor:
    """How far off what a step size was multiplied with can be, as weights lie on a grid, and what is sent on another.

    The grid is that of the weight before or after, whichever is coarser: small weights grow with a step.

    >>> grid(torch.tensor([1.0, 1e-9]), torch.tensor([1e-3, -0.5]), ClientRule(name="fedavg"), 0.5).tolist()
    [1.1920928955078125e-07, 5.960464477539063e-08]
    """
    before = trained(weight, rule)
    off = torch.maximum(spacing(before), spacing(before - moved.to(before.dtype))) / (2 * rate)
    return off if rule.wire == "fp32" else off + spacing(moved.to(DTYPES[rule.wire])) / (2 * rate)
