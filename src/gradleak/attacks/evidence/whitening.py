"""What sentences have in common, learnt from public ones and divided out, so that what is left tells them apart.

The gradients of any two sentences point the same way for the most part: frequent inputs, frequent errors. For every
matrix, second moments of its rows and of its columns over public sentences are a Kronecker estimate of how gradients
spread; their inverse roots on both sides make every direction count alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

# What is added to the moments, relative to their mean: directions that public text hardly shows must not explode.
RIDGE = 0.01
# Sides longer than this stay as they are: their roots would take minutes.
LONGEST_SIDE = 2048


class Moments:
    """Sums over gradient rows: mean and spread of every number, second moments of every matrix's two sides."""

    def __init__(self, shapes: Sequence[tuple[int, int]]) -> None:
        self.shapes = list(shapes)
        self.count = 0
        size = sum(rows * columns for rows, columns in shapes)
        self._sum, self._squares = torch.zeros(size, dtype=torch.float64), torch.zeros(size, dtype=torch.float64)
        self._sides = [(_empty(rows), _empty(columns)) for rows, columns in shapes]

    def add(self, rows: Tensor) -> None:
        rows = rows.cpu()
        self.count += len(rows)
        self._sum += rows.double().sum(dim=0)
        self._squares += rows.double().square().sum(dim=0)
        for part, (left, right) in zip(split(rows, self.shapes), self._sides, strict=True):
            if left is not None:
                wide = part.transpose(0, 1).flatten(1)
                left += wide @ wide.T
            if right is not None:
                tall = part.flatten(0, 1)
                right += tall.T @ tall

    def typical_size(self, together: int) -> Tensor:
        """The root mean square of every number of the mean gradient of so many sentences."""
        mean = self._sum / self.count
        variance = (self._squares / self.count - mean.square()).clamp_min(0)
        return (mean.square() + variance / together).sqrt().float()

    def whitening(self) -> Whitening:
        roots = [Root(_inverse_root(left), _inverse_root(right)) for left, right in self._sides]
        return Whitening(self.shapes, roots)


class Root(NamedTuple):
    """The inverse roots of a matrix's two sides; None for a side that stays as it is."""

    left: Tensor | None = None
    right: Tensor | None = None

    def times(self, part: Tensor) -> Tensor:
        """The matrix between its roots."""
        part = part if self.right is None else part @ self.right
        return part if self.left is None else self.left @ part


@dataclass(frozen=True)
class Whitening:
    """The inverse roots of every matrix."""

    shapes: list[tuple[int, int]]
    roots: list[Root]

    def parts(self, rows: Tensor) -> list[Tensor]:
        """Rows as whitened matrices, (rows, height, width) each."""
        return [root.times(part) for part, root in zip(split(rows, self.shapes), self.roots, strict=True)]


def split(rows: Tensor, shapes: Sequence[tuple[int, int]]) -> list[Tensor]:
    """Rows of numbers as the matrices they were made of."""
    parts = rows.split([height * width for height, width in shapes], dim=1)
    return [part.reshape(-1, *shape) for part, shape in zip(parts, shapes, strict=True)]


def turned(matrix: Tensor, power: float) -> Tensor:
    """A matrix with its singular values to the power -`power`, those that are rounding left out.

    >>> turned(torch.diag(torch.tensor([4.0, 1.0, 0.0])), 0.5).diagonal().tolist()
    [0.5, 1.0, 0.0]
    """
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    kept = values > values[0] * 1e-3
    return (left[:, kept] * values[kept] ** -power) @ right[kept]


def _empty(side: int) -> Tensor | None:
    return torch.zeros(side, side) if side <= LONGEST_SIDE else None


def _inverse_root(moments: Tensor | None) -> Tensor | None:
    if moments is None:
        return None
    values, vectors = torch.linalg.eigh(moments.double() / moments.diagonal().mean().clamp_min(1e-30))
    return ((vectors * (values.clamp_min(0) + RIDGE).rsqrt()) @ vectors.T).float()
