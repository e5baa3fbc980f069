"""Sending only some layers: the others are trained on the client but stay there."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from pydantic import Field, field_validator
from torch import Tensor

from gradleak.defenses.base import Defense
from gradleak.errors import GradleakError
from gradleak.models.target import TargetModel


class SomeLayers(Defense):
    name = "layers"
    summary = "only some Transformer layers are sent, and neither embeddings nor the head"
    reveals = "which layers were sent"

    send: str = Field(description="layers that are sent, the first is 1: 3, 4-6 or 1+4-6")

    @field_validator("send")
    @classmethod
    def _readable(cls, value: str) -> str:
        layer_numbers(value)
        return value

    def apply(
        self, tensors: Mapping[str, Tensor], model: TargetModel, generator: torch.Generator
    ) -> dict[str, Tensor]:
        layers = model.adapter.layers
        numbers = layer_numbers(self.send)
        if max(numbers) > len(layers):
            raise GradleakError(f"layers: {model.name} has layers 1 to {len(layers)}, not {max(numbers)}")
        sent = tuple(f"{model.adapter.name_of(layers[number - 1])}." for number in sorted(numbers))
        kept = {name: tensor for name, tensor in tensors.items() if name.startswith(sent)}
        if not kept:
            raise GradleakError(f"layers: nothing of layers {self.send} is left to send")
        return kept


def layer_numbers(text: str) -> set[int]:
    """The numbers a text such as `1+4-6` means.

    >>> sorted(layer_numbers("1+4-6"))
    [1, 4, 5, 6]
    """
    found: set[int] = set()
    for piece in text.split("+"):
        first, _, last = piece.strip().partition("-")
        if (
            not first.isdecimal()
            or not (last or first).isdecimal()
            or not 1 <= int(first) <= int(last or first) < 1000
        ):
            raise ValueError(f"{text!r} is not a choice of layers such as 3, 4-6 or 1+4-6")
        found |= set(range(int(first), int(last or first) + 1))
    return found
