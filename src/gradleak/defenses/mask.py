"""Sending a random choice of coordinates. The others are zero."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from pydantic import Field
from torch import Tensor

from gradleak.defenses.base import Defense
from gradleak.models.base import Target


class Masking(Defense):
    summary = "every coordinate is set to zero by chance"
    reveals = "which coordinates were masked: they are zero"
    coordinatewise, leaves = True, "some"

    ratio: float = Field(gt=0, lt=1, description="probability that a coordinate is set to zero")

    def apply(self, tensors: Mapping[str, Tensor], model: Target, generator: torch.Generator) -> dict[str, Tensor]:
        masked = {}
        for name, tensor in tensors.items():
            kept = torch.rand(tensor.shape, generator=generator) >= self.ratio
            masked[name] = torch.where(kept.to(tensor.device), tensor, 0.0)
        return masked
