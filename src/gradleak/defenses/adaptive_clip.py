"""What Flower's adaptiveclipping_mod does: the whole update is scaled down to a norm that follows the clients'."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from pydantic import Field
from torch import Tensor

from gradleak.core.secret import Secret
from gradleak.defenses.base import Defense
from gradleak.defenses.localdp import scaled_down, total_norm
from gradleak.models.base import Target


class AdaptiveClipping(Defense):
    summary = "Flower's adaptiveclipping_mod: the whole update is scaled down to a norm that changes with the rounds"
    reveals = "the norm, and whether the update was above it; the direction stays, and what is read off it"
    random, lossy = False, False

    norm: float = Field(0.1, gt=0, description="the norm of the first round")
    quantile: float = Field(0.5, ge=0, le=1, description="the share of clipped updates at which the norm stays")
    lr: float = Field(0.2, gt=0, le=10, description="how fast the norm changes")
    round: int = Field(1, ge=1, le=10_000, description="the round that the update is of, counted from 1")

    def in_round(self, number: int, rounds: int, shared: Secret) -> AdaptiveClipping:
        return self.model_copy(update={"round": min(number, 10_000)})

    def norm_for(self, size: float) -> float:
        """The norm of its round if all clients' updates had this size in the rounds before."""
        norm = self.norm
        for _ in range(self.round - 1):
            norm = adapted(norm, float(size > norm), self.quantile, self.lr)
        return norm

    def apply(self, tensors: Mapping[str, Tensor], model: Target, generator: torch.Generator) -> dict[str, Tensor]:
        return scaled_down(tensors, self.norm_for(total_norm(tensors)))


def adapted(norm: float, clipped: float, quantile: float, lr: float) -> float:
    """The norm of the next round, where this share of the updates was clipped.

    The sign is Flower's (1.41). Andrew et al. (2019), whom it follows, count the updates that were *not* clipped; so
    there the norm follows the quantile, and here it runs away from it.

    >>> round(adapted(0.1, 1.0, 0.5, 0.2), 4), round(adapted(0.1, 0.0, 0.5, 0.2), 4)
    (0.0905, 0.1105)
    """
    return norm * math.exp(-lr * (clipped - quantile))
