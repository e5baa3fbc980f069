"""Gaussian noise on every coordinate, without clipping: what the LAMP paper's Table 5 measures."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from pydantic import Field
from torch import Tensor

from gradleak.defenses.base import Defense
from gradleak.models.base import Target
from gradleak.updates.client_rule import ClientRule


class GaussianNoise(Defense):
    summary = "Gaussian noise of a fixed size on every coordinate (no clipping, so no privacy guarantee)"
    reveals = "the size of the noise, which the spectrum of any matrix shows anyway"
    coordinatewise, lossy = True, False

    sigma: float = Field(gt=0, description="standard deviation of the noise on one coordinate")

    def noise_std(self, rule: ClientRule, examples: int) -> float:
        return self.sigma

    def without_noise(self) -> None:
        return None

    def apply(self, tensors: Mapping[str, Tensor], model: Target, generator: torch.Generator) -> dict[str, Tensor]:
        noisy = {}
        for name, tensor in tensors.items():
            noise = torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype)
            noisy[name] = tensor + self.sigma * noise.to(tensor.device)
        return noisy
