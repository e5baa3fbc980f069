"""How far one gradient is from another: pure functions over lists of tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor

DistanceName = Literal["cosine", "l2", "l2+l1"]
Distance = Callable[[Sequence[Tensor], Sequence[Tensor]], Tensor]


def cosine(dummy: Sequence[Tensor], target: Sequence[Tensor]) -> Tensor:
    """Mean over tensors of 1 − cos: every tensor counts the same, however small its values.

    >>> one, two = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])
    >>> float(cosine([one, one], [one, two]))
    0.5
    """
    apart = [
        1 - (d * t).sum() / (d.norm() * t.norm()).clamp_min(torch.finfo(d.dtype).tiny)
        for d, t in zip(dummy, target, strict=True)
    ]
    return torch.stack(apart).mean()


def squared(dummy: Sequence[Tensor], target: Sequence[Tensor]) -> Tensor:
    """Sum of squared differences over all coordinates."""
    return torch.stack([(d - t).square().sum() for d, t in zip(dummy, target, strict=True)]).sum()


def absolute(dummy: Sequence[Tensor], target: Sequence[Tensor]) -> Tensor:
    """Sum of absolute differences over all coordinates."""
    return torch.stack([(d - t).abs().sum() for d, t in zip(dummy, target, strict=True)]).sum()


def make_distance(name: DistanceName, l1_weight: float = 0.01) -> Distance:
    """The distance of that name; `l1_weight` is TAG's factor on the absolute differences.

    >>> one, two = torch.tensor([3.0]), torch.tensor([1.0])
    >>> float(make_distance("l2")([one], [two])), round(float(make_distance("l2+l1")([one], [two])), 4)
    (4.0, 4.02)
    """
    if name == "cosine":
        return cosine
    if name == "l2":
        return squared
    return lambda dummy, target: squared(dummy, target) + l1_weight * absolute(dummy, target)
