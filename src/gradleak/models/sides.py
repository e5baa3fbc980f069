"""The two sides of an encoder-decoder, each as a model that reads one of the two texts of an example."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from gradleak.models.adapter import Adapter
from gradleak.models.tasks import SideName
from gradleak.models.tasks.seq2seq import AmongTargets, start_token
from gradleak.models.text import TextModel


class Side(TextModel):
    """A view of one half of a model: its layers, its special tokens, and what runs them. The weights are the model's.

    `prefix` and `suffix` are what stands before and after every text where this side reads it.
    """

    side: ClassVar[SideName]

    def __init__(self, model: TextModel, adapter: Adapter) -> None:
        self.whole = model
        self.module, self.tokenizer = model.module, model.tokenizer
        self.task, self.goal = model.task, model.goal
        self.name, self.origin = model.name, model.origin
        self.adapter = adapter
        self.prefix, self.suffix = model.prefix, model.suffix

    def run(self, **inputs: Any) -> Any:
        return self.adapter.runs(**inputs)


class Source(Side):
    """The encoder. Its sentences' labels are targets, of which some may be known."""

    side = "source"

    def __init__(self, model: TextModel, targets: Sequence[tuple[int, ...]] = ()) -> None:
        super().__init__(model, model.adapter.sides[0])
        self.goal = AmongTargets(targets)

    def to_float64(self, trained: Collection[str] | None = None, rows: Tensor | None = None) -> Source:
        assert isinstance(self.goal, AmongTargets)
        return Source(self.whole.to_float64(trained, rows), self.goal.choices)


class Target(Side):
    """The decoder up to where it first looks at the source: it reads targets moved on by one, after a start token."""

    side = "target"

    def __init__(self, model: TextModel) -> None:
        super().__init__(model, model.adapter.sides[1])
        self.prefix = [start_token(model), *model.prefix]
        self.suffix = model.suffix[:-1]  # what is predicted last is not read

    @property
    def reads_last(self) -> bool:
        return False

    def run(self, **inputs: Any) -> Any:
        given = next(inputs[name] for name in ("input_ids", "inputs_embeds") if name in inputs)
        table = self.token_embedding
        # Without a source the decoder would pass over what looks at it. Nothing before depends on what that is.
        nothing = torch.zeros(len(given), 1, table.shape[1], dtype=table.dtype, device=table.device)
        return self.adapter.runs(**inputs, encoder_hidden_states=nothing)


def sides_of(model: TextModel) -> list[TextModel]:
    """The models that read the texts of an example: the model itself, or the two sides of an encoder-decoder."""
    return [Source(model), Target(model)] if model.adapter.sides else [model]
