"""A family's declaration resolved on one real model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from gradleak.core.errors import GradleakError
from gradleak.models.families import Family, Fused, Task


@dataclass(frozen=True)
class Carrier:
    """A tensor whose rows lie in the span of what a part sees, or of `map` times that."""

    name: str
    matrix: torch.Tensor
    map: torch.Tensor | None = None


@dataclass(frozen=True)
class Part:
    """One linear module of one layer, or one block of a fused one."""

    role: str
    name: str
    module: nn.Module
    block: tuple[int, int] = (0, 1)  # which of how many blocks of a fused module
    transposed: bool = False  # the module stores (inputs, outputs)

    @property
    def weight_name(self) -> str:
        return f"{self.name}.weight"

    @property
    def tensor_names(self) -> list[str]:
        """The tensors that can carry this part's inputs: its weight, or the factors of LoRA."""
        factors = [f"{self.name}.{side}.{key}.weight" for side in ("lora_A", "lora_B") for key in self._adapters]
        return [self.weight_name, *factors]

    def carrier(self, tensors: Mapping[str, torch.Tensor]) -> Carrier | None:
        """The tensor of an update that reveals this part's inputs, (outputs, inputs); None if there is none.

        The gradient of LoRA's A factor has the inputs as its rows, unless B is still zero. Then B's has them seen
        through A.
        """
        if self.weight_name in tensors:
            return Carrier(self.weight_name, self.of(tensors[self.weight_name]))
        for key in self._adapters:
            first, second = (f"{self.name}.{side}.{key}.weight" for side in ("lora_A", "lora_B"))
            if first in tensors and bool(tensors[first].any()):
                return Carrier(first, tensors[first])
            if second in tensors and bool(tensors[second].any()):
                return Carrier(second, tensors[second], self._factors[key].weight.detach())
        return None

    @property
    def _factors(self) -> Mapping[str, Any]:
        factors: Mapping[str, Any] = getattr(self.module, "lora_A", {})
        return factors

    @property
    def _adapters(self) -> list[str]:
        return list(self._factors)

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """This part's (outputs, inputs) matrix out of a tensor shaped like the module's weight."""
        matrix = tensor.T if self.transposed else tensor
        index, count = self.block
        return matrix.chunk(count, dim=0)[index]


class Adapter:
    """Where embeddings, positions, layers, their linear modules and the head of a model are."""

    def __init__(self, model: Any, family: Family, task: Task) -> None:
        if task not in family.tasks:
            raise GradleakError(f"{family.name} models are supported for {', '.join(family.tasks)}, not {task}")
        self.family = family
        self._names = {module: name for name, module in model.named_modules()}
        base = model.base_model
        self.token_embedding: nn.Embedding = base.get_submodule(family.token_embedding)
        self.positions: nn.Embedding | None = _maybe(base, family.positions)
        self.token_types: nn.Embedding | None = _maybe(base, family.token_types)
        self.embedding_norm: nn.Module | None = _maybe(base, family.embedding_norm)
        self.layers: list[nn.Module] = list(base.get_submodule(family.layers))
        self.head: list[nn.Module] = [_part_of_head(model, path, task) for path in family.head[task]]
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
        path, block = (where.path, (where.index, where.count)) if isinstance(where, Fused) else (where, (0, 1))
        module = layer.get_submodule(path)
        transposed = type(module).__name__ in self.family.transposed
        return Part(role, self.name_of(module), module, block, transposed)


def _part_of_head(model: Any, path: str, task: Task) -> nn.Module:
    try:
        part: nn.Module = model.get_submodule(path)
    except AttributeError as error:
        raise GradleakError(f"a {type(model).__name__} has no {path}, which {task} needs") from error
    return part


def _maybe(base: nn.Module, path: str | None) -> Any:
    return None if path is None else base.get_submodule(path)
