"""The two sides of an encoder-decoder, each as a model that reads one of the two texts of an example."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from gradleak.core.errors import GradleakError
from gradleak.models.adapter import Adapter
from gradleak.models.text import TextModel

SideName = Literal["source", "target"]


class Side(TextModel):
    """A view of one half of a model: its layers, its special tokens, and what runs them. The weights are the model's.

    `prefix` and `suffix` are what stands before and after every text where this side reads it.
    """

    side: SideName

    def __init__(self, model: TextModel, adapter: Adapter) -> None:
        self.whole = model
        self.module, self.tokenizer, self.task = model.module, model.tokenizer, model.task
        self.name, self.origin = model.name, model.origin
        self.adapter = adapter
        self.prefix, self.suffix = model.prefix, model.suffix

    def run(self, **inputs: Any) -> Any:
        return self.adapter.runs(**inputs)


class Target(Side):
    """The decoder up to where it first looks at the source: it reads targets moved on by one, after a start token."""

    side = "target"

    def __init__(self, model: TextModel) -> None:
        super().__init__(model, model.adapter.sides[1])
        self.prefix = [start_token(model), *model.prefix]
        self.suffix = model.suffix[:-1]  # what is predicted last is not read

    def run(self, **inputs: Any) -> Any:
        given = next(inputs[name] for name in ("input_ids", "inputs_embeds") if name in inputs)
        width = self.token_embedding.shape[1]
        # Without a source the decoder would pass over what looks at it. No part before depends on what it is.
        nothing = torch.zeros(len(given), 1, width, dtype=self.token_embedding.dtype, device=given.device)
        return self.adapter.runs(**inputs, encoder_hidden_states=nothing)
