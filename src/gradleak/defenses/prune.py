"""Sending only the largest coordinates. The others are zero."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from pydantic import Field
from torch import Tensor

from gradleak.defenses.base import Defense
from gradleak.models.base import Target

# One of this many coordinates is looked at to guess where the limit lies.
SAMPLED = 32


class Pruning(Defense):
    summary = "only the largest coordinates of the whole update are sent, the others are zero"
    reveals = "which coordinates were pruned: they are zero; and that they were smaller than all others"
    random, leaves = False, "largest"

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

    def apply_many(
        self, tensors: Mapping[str, Tensor], model: Target, generator: torch.Generator
    ) -> dict[str, Tensor]:
        rows = len(next(iter(tensors.values())))
        sizes = torch.cat([tensor.reshape(rows, -1).abs() for tensor in tensors.values()], dim=1)
        limits = magnitude_limits(sizes, self.ratio)[:, None]
        kept = sizes > limits
        room = sizes.shape[1] - pruned_count(sizes.shape[1], self.ratio) - kept.sum(dim=1, keepdim=True)
        if bool(((room > 0) & (limits > 0)).any()):
            level = sizes == limits
            kept |= level & (level.cumsum(dim=1) <= room)
        parts = kept.split([tensor[0].numel() for tensor in tensors.values()], dim=1)
        return {
            name: torch.where(part.view_as(tensor), tensor, 0.0)
            for part, (name, tensor) in zip(parts, tensors.items(), strict=True)
        }


def magnitude_limit(tensors: Mapping[str, Tensor], ratio: float) -> float:
    """The size that a share `ratio` of all coordinates does not exceed.

    >>> magnitude_limit({"a": torch.tensor([1.0, -4.0]), "b": torch.tensor([[3.0], [2.0]])}, 0.5)
    2.0
    """
    sizes = torch.cat([tensor.abs().flatten() for tensor in tensors.values()])
    return float(sizes.kthvalue(pruned_count(len(sizes), ratio)).values)


def magnitude_limits(sizes: Tensor, ratio: float) -> Tensor:
    """For every row the size that a share `ratio` of its coordinates does not exceed, as `magnitude_limit`.

    A sample gives a bound that the limit is almost certainly above; only what lies above it is sorted.

    >>> magnitude_limits(torch.tensor([[1.0, 4.0, 3.0, 2.0]]), 0.5).tolist()
    [2.0]
    """
    count = sizes.shape[1]
    rank = pruned_count(count, ratio)
    above = count - rank + 1  # the limit's rank from the top
    sample = sizes[:, ::SAMPLED]
    wanted = min(sample.shape[1], int(1.3 * above / SAMPLED) + 16)
    floors = sample.topk(wanted, dim=1).values[:, -1]
    limits = []
    for row, floor in zip(sizes, floors, strict=True):
        candidates = row[row >= floor]
        if len(candidates) < above:  # the sample misled us
            candidates = row
        limits.append(candidates.topk(above).values[-1])
    return torch.stack(limits)


def pruned_count(coordinates: int, ratio: float) -> int:
    """How many of the coordinates are set to zero, at least one."""
    return max(1, round(ratio * coordinates))
