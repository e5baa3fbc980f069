"""A gradient as a sum of outer products, kept as its factors.

A matrix that is used once with inputs X (tokens × in) and output gradients D (tokens × out) has the gradient
Dᵀ X. A matrix that is used several times (an embedding table that is also the output layer) has the sum over
its uses. Inner products and norms of such gradients need only the factors.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Factors:
    """Gradient leftᵀ · right for every row. left: (R, T, out), right: (R, T, in)."""

    left: Tensor
    right: Tensor

    def dense(self) -> Tensor:
        return self.left.transpose(1, 2) @ self.right


@dataclass(frozen=True)
class TableRows:
    """Gradient of a table that was read at an index: `values` added up at the rows `index`.

    index: (R, T), values: (R, T, d), and the table has `size` rows. The left factor is one-hot and never made.
    """

    index: Tensor
    values: Tensor
    size: int

    def dense(self) -> Tensor:
        empty = self.values.new_zeros(len(self.values), self.size, self.values.shape[2])
        return empty.scatter_add(1, self.index[..., None].expand_as(self.values), self.values)


Factored = Factors | TableRows


def inner(a: Factored, b: Factored) -> Tensor:
    """⟨gradient of a, gradient of b⟩ for every row, (R,): two small Gram matrices, multiplied and summed.

    >>> import torch
    >>> g = torch.Generator().manual_seed(0)
    >>> a = Factors(torch.randn(2, 3, 5, generator=g), torch.randn(2, 3, 4, generator=g))
    >>> b = TableRows(torch.tensor([[0, 4, 4], [1, 1, 2]]), torch.randn(2, 3, 4, generator=g), size=5)
    >>> bool(torch.allclose(inner(a, b), (a.dense() * b.dense()).sum(dim=(1, 2)), atol=1e-6))
    True
    """
    return (_left_gram(a, b) * (_right(a) @ _right(b).transpose(1, 2))).sum(dim=(1, 2))


def squared_norm(summands: list[Factored]) -> Tensor:
    """‖gradient‖² of a matrix whose gradient is the sum of these, one for each use of it, (R,)."""
    total = sum(inner(summand, summand) for summand in summands)
    for i, first in enumerate(summands):
        for second in summands[i + 1 :]:
            total = total + 2 * inner(first, second)
    assert isinstance(total, Tensor)
    return total


def _left_gram(a: Factored, b: Factored) -> Tensor:
    if isinstance(a, Factors) and isinstance(b, Factors):
        return a.left @ b.left.transpose(1, 2)
    if isinstance(a, TableRows) and isinstance(b, TableRows):
        return (a.index[:, :, None] == b.index[:, None, :]).to(a.values)
    if isinstance(a, TableRows) and isinstance(b, Factors):
        picked = b.left.gather(2, a.index[:, None, :].expand(-1, b.left.shape[1], -1))
        return picked.transpose(1, 2)
    return _left_gram(b, a).transpose(1, 2)


def _right(a: Factored) -> Tensor:
    return a.right if isinstance(a, Factors) else a.values
