"""Sending a few bits per coordinate."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from pydantic import Field
from torch import Tensor

from gradleak.defenses.base import Defense
from gradleak.models.base import Target


class Quantization(Defense):
    summary = "every tensor is rounded to evenly spaced values between plus and minus its largest one"
    reveals = "the spacing of a tensor's values, which bounds the error on each"
    random = False

    bits: int = Field(8, ge=2, le=16, description="bits per coordinate")

    def apply(self, tensors: Mapping[str, Tensor], model: Target, generator: torch.Generator) -> dict[str, Tensor]:
        return {name: rounded(tensor, self.bits) for name, tensor in tensors.items()}


def rounded(tensor: Tensor, bits: int) -> Tensor:
    """The tensor on a grid of 2^bits - 1 values around zero.

    >>> rounded(torch.tensor([-1.0, 0.2, 0.6]), 2).tolist()
    [-1.0, 0.0, 1.0]
    """
    step = tensor.abs().max() / (2 ** (bits - 1) - 1)
    return (tensor / step).round() * step if float(step) else tensor
