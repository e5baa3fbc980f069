"""Sending only some layers: the others are trained on the client but stay there."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from pydantic import Field, field_validator
from torch import Tensor

from gradleak.core.errors import GradleakError
from gradleak.defenses.base import Defense
from gradleak.models.base import Target
from gradleak.models.selection import selected
from gradleak.models.selection_text import layer_numbers


class SomeLayers(Defense):
    summary = "only some layers are sent, and neither embeddings nor the head of a Transformer"
    reveals = "which layers were sent"
    random, coordinatewise, lossy = False, True, False

    send: str = Field(description="layers that are sent, the first is 1: 3, 4-6 or 1+4-6")

    @field_validator("send")
    @classmethod
    def _readable(cls, value: str) -> str:
        try:
            layer_numbers(value)
        except GradleakError as error:
            raise ValueError(str(error)) from error
        return value

    @property
    def alters(self) -> bool:
        return False  # what is sent is sent as it is

    def apply(self, tensors: Mapping[str, Tensor], model: Target, generator: torch.Generator) -> dict[str, Tensor]:
        sent = set(selected(f"layers:{self.send}", model))
        kept = {name: tensor for name, tensor in tensors.items() if name in sent}
        if not kept:
            raise GradleakError(f"layers: nothing of layers {self.send} is left to send")
        return kept
