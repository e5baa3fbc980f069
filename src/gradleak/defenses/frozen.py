"""Frozen parameters: they are not trained, so nothing is sent for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from gradleak.defenses.base import Defense
from gradleak.models.target import TargetModel


class Frozen(Defense):
    name = "frozen"
    summary = "some parameters are not trained: their tensors do not leave the client"

    parts: Literal["embeddings", "words"] = Field(
        "embeddings", description="embeddings: all embedding tables; words: the word table only"
    )

    def apply(
        self, tensors: Mapping[str, Tensor], model: TargetModel, generator: torch.Generator
    ) -> dict[str, Tensor]:
        adapter = model.adapter
        tables = [adapter.words] if self.parts == "words" else [adapter.words, adapter.positions, adapter.token_types]
        kept_back = {adapter.parameter_of(table) for table in tables if table is not None}
        return {name: tensor for name, tensor in tensors.items() if name not in kept_back}
