"""What NVIDIA FLARE's PercentilePrivacy does: small coordinates become zero, large ones are cut off."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from pydantic import Field
from torch import Tensor

from gradleak.defenses.base import Defense
from gradleak.models.base import Target


class PercentilePrivacy(Defense):
    summary = "NVFlare's PercentilePrivacy: the smallest coordinates of the update are zero, large ones are cut off"
    reveals = "the cut-off, at which many coordinates stand; and which are zero"
    random = False

    percentile: float = Field(10.0, ge=0, le=100, description="so many percent of the sizes lie below what is kept")
    gamma: float = Field(0.01, gt=0, description="the largest size that is sent")

    def apply(self, tensors: Mapping[str, Tensor], model: Target, generator: torch.Generator) -> dict[str, Tensor]:
        limit = percentile_size(tensors, self.percentile)
        kept = {name: torch.where(tensor.abs() < limit, 0.0, tensor) for name, tensor in tensors.items()}
        return {name: tensor.clamp(-self.gamma, self.gamma) for name, tensor in kept.items()}


def percentile_size(tensors: Mapping[str, Tensor], percentile: float) -> float:
    """The size below which so many percent of all coordinates lie, between two of them by linear interpolation.

    Where most coordinates are zero, as rows of a token embedding are, it is zero, and nothing is left out.

    >>> percentile_size({"a": torch.tensor([1.0, -4.0]), "b": torch.tensor([3.0, 2.0])}, 50)
    2.5
    """
    sizes = torch.cat([tensor.abs().flatten() for tensor in tensors.values()])
    place = percentile / 100 * (len(sizes) - 1)
    below = int(place)
    low = float(sizes.kthvalue(below + 1).values)
    high = float(sizes.kthvalue(min(below + 2, len(sizes))).values)
    return low + (place - below) * (high - low)
