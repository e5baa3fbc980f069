"""Sending only some coordinates: the largest ones, or a random choice. The others are zero."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from pydantic import Field
from torch import Tensor

from gradleak.defenses.base import Defense
from gradleak.models.base import Target


class Pruning(Defense):
    summary = "only the largest coordinates of the whole update are sent, the others are zero"
    reveals = "which coordinates were pruned: they are zero; and that they were smaller than all others"

    ratio: float = Field(gt=0, lt=1, description="share of the coordinates set to zero")

    def apply(self, tensors: Mapping[str, Tensor], model: Target, generator: torch.Generator) -> dict[str, Tensor]:
        limit = magnitude_limit(tensors, self.ratio)
        above = sum(int((tensor.abs() > limit).sum()) for tensor in tensors.values())
        # Of coordinates that are equally large, as signs are, the first ones fill up what may be sent.
        coordinates = sum(tensor.numel() for tensor in tensors.values())
        room = coordinates - pruned_count(coordinates, self.ratio) - above
        kept = {}
        for name, tensor in tensors.items():
            level = tensor.abs() == limit
            first = level & (level.flatten().cumsum(dim=0).view(level.shape) <= room)
            room -= int(first.sum())
            kept[name] = torch.where((tensor.abs() > limit) | first, tensor, 0.0)
        return kept


class Masking(Defense):
    summary = "every coordinate is set to zero by chance"
    reveals = "which coordinates were masked: they are zero"

    ratio: float = Field(gt=0, lt=1, description="chance of a coordinate to be set to zero")

    def apply(self, tensors: Mapping[str, Tensor], model: Target, generator: torch.Generator) -> dict[str, Tensor]:
        masked = {}
        for name, tensor in tensors.items():
            kept = torch.rand(tensor.shape, generator=generator) >= self.ratio
            masked[name] = torch.where(kept.to(tensor.device), tensor, 0.0)
        return masked


def magnitude_limit(tensors: Mapping[str, Tensor], ratio: float) -> float:
    """The size that so large a share of all coordinates does not exceed.

    >>> magnitude_limit({"a": torch.tensor([1.0, -4.0]), "b": torch.tensor([[3.0], [2.0]])}, 0.5)
    2.0
    """
    sizes = torch.cat([tensor.abs().flatten() for tensor in tensors.values()])
    return float(sizes.kthvalue(pruned_count(len(sizes), ratio)).values)


def pruned_count(coordinates: int, ratio: float) -> int:
    """How many of so many coordinates are set to zero, one at least."""
    return max(1, round(ratio * coordinates))
