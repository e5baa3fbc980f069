"""What an inverter looks at: an update's tensors made into a vector, or into a row for every position."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

import torch
from torch import Tensor

from gradleak.errors import GradleakError
from gradleak.inversion.hashing import Hashing
from gradleak.models.target import TargetModel

FeatureName = Literal["structured", "hashed"]
# How much of the keys' mean square is added before they are unmixed: they are known only roughly.
RIDGE = 0.1


class Features(Protocol):
    """Reads many updates at once; every tensor is (rows, *shape)."""

    names: list[str]
    """The tensors that are read."""
    size: int

    def of(self, tensors: Mapping[str, Tensor]) -> Tensor: ...


class Hashed:
    """All coordinates dealt to a tenth as many bins, as published."""

    def __init__(self, shapes: Mapping[str, Sequence[int]], share: float = 0.1, seed: int = 0) -> None:
        self.names = list(shapes)
        total = sum(torch.Size(shape).numel() for shape in shapes.values())
        self.size = max(1, round(share * total))
        self.hashing = Hashing(shapes, self.size, seed)

    def of(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """(rows, bins)."""
        return self.hashing.of({name: tensors[name] for name in self.names if name in tensors})


class Structured:
    """What belongs to a position, together: the position table's row, and what layers saw there.

    Row p of the table's gradient is the loss's derivative by the input at position p, and so nearly by the output of
    every layer there, for each layer adds to what it gets. A feed-forward block's first matrix has the gradient
    Σ_p (input at p) (signal at p)ᵀ, and the signal at p is that derivative sent back through the second matrix, which
    is known, and through the activation. So the rows serve as keys: projecting the gradient onto them, with their
    overlap taken out, gives about the input at every position. The same from the second matrix's gradient,
    Σ_p (activation at p) (derivative at p)ᵀ, seen through the first matrix.
    """

    def __init__(self, model: TargetModel, length: int) -> None:
        table = model.adapter.positions
        if table is None:
            raise GradleakError(f"{model.name} has no position table; use features=hashed")
        first = model.adapter.family.first_position
        self._rows = slice(first, first + length)
        self._table = model.adapter.parameter_of(table)
        self._parts = [(parts["ffn_in"], parts["ffn_out"]) for parts in model.adapter.parts]
        weights = dict(model.module.named_parameters())
        self._into = [i.of(weights[i.weight_name].detach()) for i, _ in self._parts]  # (wide, width)
        self._out = [o.of(weights[o.weight_name].detach()) for _, o in self._parts]  # (width, wide)
        self.names = [self._table, *(part.weight_name for pair in self._parts for part in pair)]
        self.size = model.word_table.shape[1] * (1 + 2 * len(self._parts))

    def of(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """(rows, positions, features)."""
        rows = tensors[self._table][:, self._rows]
        views = [rows]
        signals = unmixing(rows)
        for (first, second), into, out in zip(self._parts, self._into, self._out, strict=True):
            inputs = _matrix(tensors[first.weight_name], first.transposed)  # (rows, wide, width)
            states = _matrix(tensors[second.weight_name], second.transposed)  # (rows, width, wide)
            views.append(unmixing(rows @ out) @ inputs)
            views.append(signals @ states @ into)
        return torch.cat(views, dim=-1)


def unmixing(keys: Tensor) -> Tensor:
    """For keys K, (rows, positions, n), the matrix (K Kᵀ + λ)⁻¹ K that finds each one's share in a mixture.

    >>> keys = torch.eye(3)[None, :2]
    >>> mixture = 1.1 * (2 * keys[0, 0] + 5 * keys[0, 1])
    >>> (unmixing(keys) @ mixture).tolist()
    [[2.0, 5.0]]
    """
    products = keys @ keys.transpose(1, 2)
    typical = products.diagonal(dim1=1, dim2=2).mean(dim=1).clamp_min(1e-30)
    damping = torch.diag_embed((RIDGE * typical)[:, None].expand(-1, keys.shape[1]))
    return torch.linalg.solve(products + damping, keys)


def _matrix(tensor: Tensor, transposed: bool) -> Tensor:
    """(rows, outputs, inputs) of a weight stored either way."""
    return tensor.transpose(1, 2) if transposed else tensor
