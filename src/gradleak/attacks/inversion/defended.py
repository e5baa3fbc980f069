"""Defences on many updates at once: what `Defense.apply` does to each, without a loop where that can be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gradleak.core.errors import GradleakError
from gradleak.defenses.base import Defense
from gradleak.defenses.coarse import SignCompression
from gradleak.defenses.layers import SomeLayers
from gradleak.defenses.noise import GaussianNoise
from gradleak.defenses.sparse import Masking, Pruning, pruned_count
from gradleak.models.base import Target

# These treat every coordinate alone, or whole tensors, so they do not care how many updates stand in a row.
COORDINATEWISE = (SignCompression, GaussianNoise, Masking, SomeLayers)
# One coordinate of so many is looked at to guess where the limit of pruning lies.
SAMPLED = 32


def defend(
    tensors: Mapping[str, Tensor], defenses: Sequence[Defense], model: Target, generator: torch.Generator
) -> dict[str, Tensor]:
    """Updates given as (rows, *shape) a tensor, each as it would be sent."""
    defended = dict(tensors)
    for defense in defenses:
        if isinstance(defense, COORDINATEWISE):
            defended = defense.apply(defended, model, generator)
        elif isinstance(defense, Pruning):
            defended = _pruned(defended, defense.ratio)
        else:
            defended = _one_by_one(defended, defense, model, generator)
    return defended


def acts_on_parts(defenses: Sequence[Defense]) -> bool:
    """Whether what becomes of some tensors does not depend on the others."""
    return all(isinstance(defense, COORDINATEWISE) for defense in defenses)


def is_random(defenses: Sequence[Defense]) -> bool:
    """Whether the same gradient is sent differently each time."""
    return any(isinstance(defense, GaussianNoise | Masking) for defense in defenses)


def check_learnable(defenses: Sequence[Defense]) -> None:
    """Refuse defences that act while the gradient is computed: they cannot be put on top of a plain one."""
    for defense in defenses:
        if defense.gradient(torch.Generator()) is not None:
            raise GradleakError(f"an inverter cannot be trained under {defense.name}: it changes how gradients arise")


def _pruned(tensors: Mapping[str, Tensor], ratio: float) -> dict[str, Tensor]:
    rows = len(next(iter(tensors.values())))
    sizes = torch.cat([tensor.reshape(rows, -1).abs() for tensor in tensors.values()], dim=1)
    limits = magnitude_limits(sizes, ratio)[:, None]
    kept = sizes > limits
    # Of equally large coordinates, as signs are, the first ones fill up what may be sent.
    room = sizes.shape[1] - pruned_count(sizes.shape[1], ratio) - kept.sum(dim=1, keepdim=True)
    if bool(((room > 0) & (limits > 0)).any()):
        level = sizes == limits
        kept |= level & (level.cumsum(dim=1) <= room)
    parts = kept.split([tensor[0].numel() for tensor in tensors.values()], dim=1)
    return {
        name: torch.where(part.view_as(tensor), tensor, 0.0)
        for part, (name, tensor) in zip(parts, tensors.items(), strict=True)
    }


def magnitude_limits(sizes: Tensor, ratio: float) -> Tensor:
    """For every row the size that so large a share of its coordinates does not exceed, as `magnitude_limit`.

    A sample tells a bound that the limit is certainly or almost certainly above; only what lies above it is ordered.

    >>> magnitude_limits(torch.tensor([[1.0, 4.0, 3.0, 2.0]]), 0.5).tolist()
    [2.0]
    """
    count = sizes.shape[1]
    rank = pruned_count(count, ratio)
    above = count - rank + 1  # the limit is so far from the top
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


def _one_by_one(
    tensors: Mapping[str, Tensor], defense: Defense, model: Target, generator: torch.Generator
) -> dict[str, Tensor]:
    rows = len(next(iter(tensors.values())))
    sent = [defense.apply({name: t[i] for name, t in tensors.items()}, model, generator) for i in range(rows)]
    return {name: torch.stack([one[name] for one in sent]) for name in sent[0]}
