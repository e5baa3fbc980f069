"""The gradients that were shared, in the form that makes comparing with them cheap.

A gradient of T tokens has rank T at most. If it does, a thin decomposition holds it exactly and an inner product
costs a few columns; noise makes it full, and then the dense matrix is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.matching.factored import Factored, Factors

# Columns beyond the rank looked for: they make a random basis miss nothing.
SPARE = 8
# What a thin form may leave out, in units of the data type's rounding.
ROUNDING = 64.0


@dataclass(frozen=True)
class Group:
    """Consecutive rows that are compared with the same update."""

    target: int
    first: int
    count: int


def groups_of(target: Tensor) -> list[Group]:
    """The groups of a sorted list of target numbers."""
    numbers, counts = torch.unique_consecutive(target, return_counts=True)
    firsts = torch.cumsum(counts, dim=0) - counts
    return [Group(*entry) for entry in zip(numbers.tolist(), firsts.tolist(), counts.tolist(), strict=True)]


class Target:
    """One parameter's gradient in every update."""

    def __init__(self, tensors: Sequence[Tensor], rank: int) -> None:
        self.tensors = list(tensors)
        self.squares = torch.stack([t.double().square().sum() for t in tensors]).to(tensors[0])
        self.thin = _thin(tensors, rank)

    def inner(self, gradient: Factored, groups: Sequence[Group]) -> Tensor:
        """⟨gradient, target⟩ for every row, (R,)."""
        if not isinstance(gradient, Factors):
            values, rows = gradient.values, [self.tensors[g.target] for g in groups]
            read = [t[gradient.index[g.first : g.first + g.count]] for t, g in zip(rows, groups, strict=True)]
            return (values * torch.cat(read)).sum(dim=(1, 2))
        if self.thin is None:
            pulled = multiply(gradient.left, self.tensors, groups)
            return (pulled * gradient.right).sum(dim=(1, 2))
        left, right = self.thin
        return (multiply(gradient.left, left, groups) * multiply(gradient.right, right, groups)).sum(dim=(1, 2))

    def square(self, groups: Sequence[Group]) -> Tensor:
        """‖target‖² for every row, (R,)."""
        return self.squares[row_targets(groups, self.squares.device)]


def row_targets(groups: Sequence[Group], device: torch.device) -> Tensor:
    """The target number of every row."""
    numbers = [g.target for g in groups for _ in range(g.count)]
    return torch.tensor(numbers, device=device)


def multiply(x: Tensor, matrices: Sequence[Tensor] | Tensor, groups: Sequence[Group]) -> Tensor:
    """Every row's (T, a) times its own target's (a, b)."""
    if len(groups) == 1:
        return x @ matrices[groups[0].target]
    if isinstance(matrices, Tensor) and len({g.count for g in groups}) == 1:
        chosen = matrices[[g.target for g in groups]]
        return (x.reshape(len(groups), -1, x.shape[2]) @ chosen).reshape(*x.shape[:2], -1)
    return torch.cat([x[g.first : g.first + g.count] @ matrices[g.target] for g in groups])


def _thin(tensors: Sequence[Tensor], rank: int) -> tuple[Tensor, ...] | None:
    """left (K, out, k) and right (K, in, k) with tensor = left rightᵀ for every update, or None if that fails.

    A random projection finds the column space of a matrix of known small rank in one product.
    """
    if tensors[0].dim() != 2 or rank + SPARE >= min(tensors[0].shape):
        return None
    generator = torch.Generator().manual_seed(0)
    probe = torch.randn(tensors[0].shape[1], rank + SPARE, generator=generator, dtype=torch.float64)
    limit = ROUNDING * torch.finfo(tensors[0].dtype).eps
    lefts: list[Tensor] = []
    rights: list[Tensor] = []
    ranks: list[int] = [0]
    for tensor in tensors:
        exact = tensor.double()
        left, _ = torch.linalg.qr(exact @ probe.to(tensor.device))
        right = exact.T @ left
        if (exact - left @ right.T).norm() > limit * exact.norm():
            return None
        # Turn the basis so that what it holds comes first, then drop the columns that hold only rounding.
        directions, sizes, turn = torch.linalg.svd(right, full_matrices=False)
        lefts.append(left @ turn.T)
        rights.append(directions * sizes)
        ranks.append(int((sizes > torch.finfo(tensor.dtype).eps * sizes[0]).sum()))
    needed = max(*ranks, 1)
    return tuple(torch.stack(side)[..., :needed].contiguous().to(tensors[0]) for side in (lefts, rights))
