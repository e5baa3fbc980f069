"""What Flower's LocalDpMod does: the whole update is clipped, then noise is added to every coordinate."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from pydantic import Field
from torch import Tensor

from gradleak.defenses.base import Defense, Promise
from gradleak.models.base import Target
from gradleak.updates.client_rule import ClientRule


class WholeClipping(Defense):
    summary = "the whole update is scaled down to a norm (Flower's fixedclipping_mod)"
    reveals = "nothing but the norm: the direction stays, so everything that is read off it does"
    random, lossy = False, False

    norm: float = Field(1.0, gt=0, description="the largest norm of an update")

    def apply(self, tensors: Mapping[str, Tensor], model: Target, generator: torch.Generator) -> dict[str, Tensor]:
        return scaled_down(tensors, self.norm)


class LocalDp(Defense):
    summary = "Flower's LocalDpMod: the whole update is clipped, noise is added to every coordinate"
    reveals = "the clipping norm and the size of the noise"
    lossy = False

    clipping_norm: float = Field(1.0, gt=0, description="the largest norm of an update, before noise")
    sensitivity: float = Field(1.0, ge=0, description="what the noise is in proportion to")
    epsilon: float = Field(1.0, gt=0, description="ε, of the whole update of a client")
    delta: float = Field(1e-5, gt=0, lt=1, description="δ of the guarantee")

    @property
    def sigma(self) -> float:
        """The standard deviation of the noise on one coordinate."""
        return self.sensitivity * math.sqrt(2 * math.log(1.25 / self.delta)) / self.epsilon

    def apply(self, tensors: Mapping[str, Tensor], model: Target, generator: torch.Generator) -> dict[str, Tensor]:
        return {
            name: tensor + self.sigma * torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype).to(tensor)
            for name, tensor in scaled_down(tensors, self.clipping_norm).items()
        }

    def noise_std(self, rule: ClientRule, examples: int) -> float:
        return self.sigma

    def without_noise(self) -> WholeClipping:  # type: ignore[override]
        return WholeClipping(norm=self.clipping_norm)

    def promise(self) -> Promise | None:
        """The update with an example and the one without are both within the norm, so at most twice that apart."""
        return Promise(self.sigma / (2 * self.clipping_norm), whole=True) if self.sigma else None


def scaled_down(tensors: Mapping[str, Tensor], norm: float) -> dict[str, Tensor]:
    """Tensors whose norm together is at most this.

    >>> scaled_down({"a": torch.tensor([3.0]), "b": torch.tensor([4.0])}, 1.0)
    {'a': tensor([0.6000]), 'b': tensor([0.8000])}
    """
    total = total_norm(tensors)
    factor = min(1.0, norm / total) if total else 1.0
    return {name: factor * tensor for name, tensor in tensors.items()}


def total_norm(tensors: Mapping[str, Tensor]) -> float:
    """Of all tensors as one vector."""
    return math.sqrt(sum(float(tensor.double().square().sum()) for tensor in tensors.values()))
