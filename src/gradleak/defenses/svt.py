"""What NVIDIA FLARE's SVTPrivacy does: some coordinates, chosen by their noisy size, with noise of their own."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from pydantic import Field
from torch import Tensor

from gradleak.defenses.base import Defense
from gradleak.models.base import Target


class SvtPrivacy(Defense):
    summary = "NVFlare's SVTPrivacy: coordinates chosen by the sparse vector technique, with Laplace noise, cut off"
    reveals = "which coordinates were chosen: the others are zero"

    fraction: float = Field(0.1, gt=0, le=1, description="share of the coordinates that are sent")
    epsilon: float = Field(0.1, gt=0, description="privacy budget of the choice")
    release: float = Field(0.1, gt=0, description="privacy budget of every value that is sent (noise_var in NVFlare)")
    gamma: float = Field(1e-5, gt=0, description="the largest size that is sent")
    tau: float = Field(1e-6, ge=0, description="the size that a coordinate must have, before noise, to be chosen")

    def apply(self, tensors: Mapping[str, Tensor], model: Target, generator: torch.Generator) -> dict[str, Tensor]:
        values = torch.cat([tensor.flatten().double() for tensor in tensors.values()])
        wanted = math.ceil(self.fraction * len(values))
        chosen = self._chosen(values, wanted, generator)
        # With replacement, as there: some are drawn twice, so fewer are sent than wanted.
        drawn = chosen[torch.randint(len(chosen), (wanted,), generator=generator)].unique()
        noisy = values[drawn] + laplace(2 * self.gamma / self.release, len(drawn), generator)
        sent = torch.zeros_like(values)
        sent[drawn] = noisy.clamp(-self.gamma, self.gamma)
        parts = sent.split([tensor.numel() for tensor in tensors.values()])
        return {
            name: part.view(tensor.shape).to(tensor)
            for part, (name, tensor) in zip(parts, tensors.items(), strict=True)
        }

    def _chosen(self, values: Tensor, wanted: int, generator: torch.Generator) -> Tensor:
        """The coordinates whose size, with noise, is above a noisy threshold; asked again until there are enough."""
        of_threshold = self.epsilon / (1 + (2 * wanted) ** (2 / 3))
        threshold = self.tau + float(laplace(self.gamma / of_threshold, 1, generator))
        spread = 2 * self.gamma * wanted / (self.epsilon - of_threshold)
        sizes = values.abs().clamp(max=self.gamma)
        chosen = torch.zeros(len(values), dtype=torch.bool)
        while int(chosen.sum()) < wanted:
            chosen |= sizes + laplace(spread, len(values), generator) >= threshold
        return chosen.nonzero()[:, 0]


def laplace(scale: float, count: int, generator: torch.Generator) -> Tensor:
    """Numbers of a Laplace distribution around zero."""
    uniform = torch.rand(count, generator=generator, dtype=torch.double) - 0.5
    return -scale * uniform.sign() * torch.log1p(-2 * uniform.abs().clamp(max=0.5 - 1e-16))
