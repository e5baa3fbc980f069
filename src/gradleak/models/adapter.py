"""A family's declaration resolved on one real model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from gradleak.errors import GradleakError
from gradleak.models.families import Family, Fused, Task


@dataclass(frozen=True)
class Part:
    """One linear module of one layer, or one share of a fused one."""

    role: str
    name: str
    module: nn.Module
    share: tuple[int, int] = (0, 1)

    @property
    def weight_name(self) -> str:
        return f"{self.name}.weight"

    @property
    def transposed(self) -> bool:
        """True for GPT-2's Conv1D, which stores (inputs, outputs) where Linear stores (outputs, inputs)."""
        return type(self.module).__name__ == "Conv1D"

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """This part's (outputs, inputs) matrix out of a tensor shaped like the module's weight."""
        matrix = tensor.T if self.transposed else tensor
        index, count = self.share
        return matrix.chunk(count, dim=0)[index]


class Adapter:
    """Says where embeddings, positions, layers, their linear modules and the head of a model are."""

    def __init__(self, model: Any, family: Family, task: Task) -> None:
        if task not in family.tasks:
            raise GradleakError(f"{family.name} models are supported for {', '.join(family.tasks)}, not {task}")
        self.family = family
        self._names = {module: name for name, module in model.named_modules()}
        base = model.base_model
        self.words: nn.Embedding = base.get_submodule(family.words)
        self.positions: nn.Embedding | None = _maybe(base, family.positions)
        self.token_types: nn.Embedding | None = _maybe(base, family.token_types)
        self.embedding_norm: nn.Module | None = _maybe(base, family.embedding_norm)
        self.layers: list[nn.Module] = list(base.get_submodule(family.layers))
        self.head: list[nn.Module] = [model.get_submodule(path) for path in family.head[task]]
        self.parts: list[dict[str, Part]] = [
            {role: self._part(layer, role, where) for role, where in family.roles.items()} for layer in self.layers
        ]

    def name_of(self, module: nn.Module) -> str:
        """The module's dotted name in the whole model."""
        return self._names[module]

    def parameter_of(self, module: nn.Module) -> str:
        """The name of the module's weight, as an update names it."""
        return f"{self.name_of(module)}.weight"

    @property
    def output_layer(self) -> nn.Module:
        """The last linear module: what turns hidden states into logits."""
        return [m for module in self.head for m in module.modules() if isinstance(m, nn.Linear)][-1]

    def _part(self, layer: nn.Module, role: str, where: str | Fused) -> Part:
        path, share = (where.path, (where.index, where.count)) if isinstance(where, Fused) else (where, (0, 1))
        module = layer.get_submodule(path)
        return Part(role, self.name_of(module), module, share)


def _maybe(base: nn.Module, path: str | None) -> Any:
    return None if path is None else base.get_submodule(path)
