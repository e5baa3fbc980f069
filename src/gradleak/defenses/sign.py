"""Sending signs alone."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from gradleak.defenses.base import Defense
from gradleak.models.base import Target


class SignCompression(Defense):
    summary = "only the sign of every coordinate is sent"
    reveals = "that the values are signs: they are -1, 0 or 1"
    random, coordinatewise, leaves = False, True, "signs"

    def apply(self, tensors: Mapping[str, Tensor], model: Target, generator: torch.Generator) -> dict[str, Tensor]:
        return {name: tensor.sign() for name, tensor in tensors.items()}
