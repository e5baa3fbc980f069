"""What a family of architectures is: a declaration of where its models keep their parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from gradleak.models.tasks import Task

Kind = Literal["encoder", "decoder"]

ROLES = ("query", "key", "value", "attention_out", "ffn_in", "ffn_out")


@dataclass(frozen=True)
class Fused:
    """One block of a matrix that holds several roles side by side, such as GPT-2's query-key-value."""

    path: str
    index: int
    count: int


@dataclass(frozen=True)
class Family:
    """Where the models of one Hugging Face `model_type`, which is the family's name, keep their parts.

    Paths are relative to `base_model`, those of `roles` to one layer, those of `head` to the whole model.
    `first_position` is the row of the position table that the first token reads.

    `transposed` are classes of linear modules that store (inputs, outputs), where torch stores (outputs, inputs).
    `rules` names for further classes of modules how gradients are read off them: a function as those of
    `gradleak.matching.rules`, or where it is, "module:function". Common layers need none, and what has none is
    matched by plain autograd, which is slow.
    """

    name: str
    kind: Kind
    token_embedding: str
    layers: str
    roles: Mapping[str, str | Fused]
    head: Mapping[Task, tuple[str, ...]]
    positions: str | None = None
    first_position: int = 0
    token_types: str | None = None
    embedding_norm: str | None = None
    transposed: tuple[str, ...] = ()
    rules: Mapping[str, str | Callable[..., Any]] = field(default_factory=dict)

    @property
    def tasks(self) -> tuple[Task, ...]:
        return tuple(self.head)
