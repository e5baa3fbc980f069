"""A family's declaration resolved on one real model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from gradleak.core.errors import GradleakError
from gradleak.models.families import Family, Fused, Task
from gradleak.models.families.base import NEAR
from gradleak.models.stored import Kept, weight_as_saved


@dataclass(frozen=True)
class Carrier:
    """A tensor whose rows lie in the span of what a part sees, or of `map` times that."""

    name: str
    matrix: torch.Tensor
    map: torch.Tensor | None = None


@dataclass(frozen=True)
class Block:
    """Which rows of a matrix are meant: one of several blocks of these relative heights, in every group of them."""

    index: int = 0
    heights: tuple[int, ...] = (1,)
    groups: int = 1

    @property
    def whole(self) -> bool:
        return len(self.heights) == 1

    def of(self, rows: torch.Tensor, dim: int = 0) -> torch.Tensor:
        """
        >>> Block(1, (2, 1), groups=2).of(torch.arange(6)).tolist()
        [2, 5]
        """
        if self.whole:
            return rows
        grouped = rows.movedim(dim, 0).unflatten(0, (self.groups, -1))
        unit = grouped.shape[1] // sum(self.heights)
        blocks = grouped.split([unit * height for height in self.heights], dim=1)
        return blocks[self.index].flatten(0, 1).movedim(0, dim)


@dataclass(frozen=True)
class Part:
    """One linear module of one layer, or one block of a fused one."""

    role: str
    name: str
    module: nn.Module
    block: Block = Block()
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
        return self.block.of(tensor.T if self.transposed else tensor)


class Adapter:
    """Where embeddings, positions, layers, their linear modules and the head of a model are."""

    def __init__(self, model: Any, family: Family, task: Task) -> None:
        if task not in family.tasks:
            raise GradleakError(f"{family.name} models are supported for {', '.join(family.tasks)}, not {task}")
        self.family = family
        self.config: Any = model.config
        self._names = {module: name for name, module in model.named_modules()}
        base = model.base_model
        self._refuse(base)
        self.token_embedding: nn.Embedding = base.get_submodule(family.token_embedding)
        self.positions: nn.Embedding | None = _maybe(base, family.positions)
        self.position_counter: nn.Module | None = _maybe(base, family.position_counter)
        self.token_types: nn.Embedding | None = _maybe(base, family.token_types)
        self.embedding_norm: nn.Module | None = _maybe(base, family.embedding_norm)
        self.embedding_projection: nn.Module | None = _if_there(base, family.embedding_projection)
        every = [(layer, side) for side in family.sides or (family,) for layer in layers_of(base, side.layers)]
        # How many layers a token goes through; more than there are where layers are shared.
        self.depth = max(len(every), 0 if family.base else int(getattr(self.config, "num_hidden_layers", 0)))
        self.shared = self.depth > len(every)  # layers run several times: a gradient is the sum over all runs
        kept = every[: family.layers_alone]
        self.layers: list[nn.Module] = [layer for layer, _ in kept]
        self.sides = [Adapter(model, side, task) for side in family.sides]
        self.runs: nn.Module = base.get_submodule(family.base)
        self.head: list[nn.Module] = [_part_of_head(model, path, task) for path in family.head_of(task)]
        self.parts: list[dict[str, Part]] = [
            {role: self._part(layer, role, where) for role, where in _roles(side, self.config).items()}
            for layer, side in kept
        ]

    def name_of(self, module: nn.Module) -> str:
        """The module's dotted name in the whole model."""
        return self._names[module]

    def parameter_of(self, module: nn.Module) -> str:
        """The name of the module's weight, as an update names it."""
        return f"{self.name_of(module)}.weight"

    @property
    def dtype(self) -> torch.dtype:
        """What it computes in."""
        table = self.token_embedding
        return torch.float32 if isinstance(table, Kept) else table.weight.dtype

    @property
    def output_layer(self) -> nn.Module:
        """The last linear module: what turns hidden states into logits."""
        return [m for module in self.head for m in module.modules() if isinstance(m, nn.Linear)][-1]

    @property
    def tied(self) -> bool:
        """Whether the output layer's weight is that of the token embedding."""
        return weight_as_saved(self.output_layer) is weight_as_saved(self.token_embedding)

    @property
    def parallel(self) -> bool:
        """Whether feed-forward blocks see what their layer's attention sees, and not what it made of it."""
        entry = self.family.parallel
        return bool(getattr(self.config, entry) if isinstance(entry, str) else entry)

    @property
    def counts_positions(self) -> bool:
        """Whether the model counts positions by itself and takes none."""
        return self.family.position_counter is not None or self.family.position_bias is not None

    @property
    def position_biases(self) -> list[nn.Module]:
        """The attentions of layers that weigh how far apart tokens stand."""
        path = self.family.position_bias
        found = [] if path is None else [layer.get_submodule(path) for layer in self.layers]
        return [module for module in found if getattr(module, "has_relative_attention_bias", False)]

    @property
    def embeddings(self) -> list[nn.Module]:
        """All that stands before the layers: tables of tokens and positions, their norm, a projection."""
        own = (self.token_embedding, self.positions, self.token_types, self.embedding_norm, self.embedding_projection)
        found = [module for module in own if module is not None]
        return list(dict.fromkeys([*found, *(module for side in self.sides for module in side.embeddings)]))

    @property
    def windows(self) -> list[int | None]:
        """For every layer how many tokens a token sees, counted back from itself; None: all."""
        width = getattr(self.config, self.family.window, None) if self.family.window else None
        kinds = getattr(self.config, self.family.layer_kinds, None)
        return [width if kinds is None or kinds[number] in NEAR else None for number in range(len(self.layers))]

    @property
    def logit_cap(self) -> float | None:
        """What logits of a language model stay below, if anything."""
        cap = getattr(self.config, self.family.logit_cap, None) if self.family.logit_cap else None
        return None if cap is None else float(cap)

    @property
    def logit_scale(self) -> float:
        """What logits of a language model are multiplied by."""
        entry = self.family.logit_scale
        return float(getattr(self.config, entry)) if isinstance(entry, str) else entry

    def position_ids(self, length: int, start: int = 0) -> torch.Tensor:
        """What the model is told of the positions of so many tokens, of which the first is at a position."""
        family = self.family
        first = family.first_position if family.first_position_id is None else family.first_position_id
        return torch.arange(first + start, first + start + length)

    def _refuse(self, base: nn.Module) -> None:
        for path, why in self.family.refused.items():
            if _if_there(base, path) is not None:
                raise GradleakError(f"this {self.family.name} model {why}, which is not supported")

    def _part(self, layer: nn.Module, role: str, where: str | Fused) -> Part:
        path, block = (where.path, self._block(where)) if isinstance(where, Fused) else (where, Block())
        module = layer.get_submodule(path)
        transposed = type(module).__name__ in self.family.transposed
        return Part(role, self.name_of(module), module, block, transposed)

    def _block(self, where: Fused) -> Block:
        heights = [self._count(each) for each in where.heights or ()] or [1] * where.count
        return Block(where.index, tuple(heights), 1 if where.groups is None else self._count(where.groups))

    def _count(self, entry: str | int) -> int:
        """A number, or what an entry of the configuration says."""
        return entry if isinstance(entry, int) else int(getattr(self.config, entry))


def _roles(family: Family, config: Any) -> Mapping[str, str | Fused]:
    """Where the parts of a layer are in a model of this configuration."""
    entry, elsewhere = family.variant or ("", {})
    return {**family.roles, **elsewhere} if entry and getattr(config, entry) else family.roles


def layers_of(base: nn.Module, path: str) -> list[nn.Module]:
    """The layers of a path, in which a star stands for every module of a list."""
    before, star, after = path.partition(".*.")
    lists = [group.get_submodule(after) for group in base.get_submodule(before).children()] if star else []
    return [layer for each in lists or [base.get_submodule(path)] for layer in each.children()]


def _part_of_head(model: Any, path: str, task: Task) -> nn.Module:
    try:
        part: nn.Module = model.get_submodule(path)
    except AttributeError as error:
        raise GradleakError(f"a {type(model).__name__} has no {path}, which {task} needs") from error
    return part


def _maybe(base: nn.Module, path: str | None) -> Any:
    """The module of a path; None if there is no path, or if this model has None in its place."""
    parent, _, last = (path or "").rpartition(".")
    if path is None or getattr(base.get_submodule(parent), last, base) is None:
        return None
    return base.get_submodule(path)


def _if_there(base: nn.Module, path: str | None) -> Any:
    """The module of a path that not every model of a family has."""
    try:
        return _maybe(base, path)
    except AttributeError:
        return None
