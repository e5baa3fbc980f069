"""Distances that look at single coordinates, formed one layer and one group of rows at a time.

The dense gradient of a layer exists only while its own term is computed: the forward pass keeps the factors, the
backward pass forms the gradient anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gradleak.matching.distances import Distance
from gradleak.matching.targets import Group

# Coordinates of one dense piece: 16 M floats are 64 MB.
PIECE = 16 << 20


class CoordinateTerm(torch.autograd.Function):
    """Σ (D² + w |D|) with D = leftᵀ right − target, for every row, and its first derivative."""

    @staticmethod
    def forward(
        ctx: Any, left: Tensor, right: Tensor, targets: Sequence[Tensor], groups: Sequence[Group], l1_weight: float
    ) -> Tensor:
        ctx.save_for_backward(left, right)
        ctx.rest = (targets, groups, l1_weight)
        terms = []
        for rows, target in _pieces(left, right, targets, groups):
            apart = _apart(left[rows], right[rows], target)
            # Norms read the large difference once each and write nothing.
            squared = torch.linalg.vector_norm(apart, dim=(1, 2)).square()
            terms.append(squared + l1_weight * torch.linalg.vector_norm(apart, ord=1, dim=(1, 2)))
        return torch.cat(terms)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        left, right = ctx.saved_tensors
        targets, groups, l1_weight = ctx.rest
        to_left, to_right = torch.empty_like(left), torch.empty_like(right)
        for rows, target in _pieces(left, right, targets, groups):
            apart = _apart(left[rows], right[rows], target)
            slope = apart.sign().mul_(l1_weight).add_(apart, alpha=2)
            scale = grads[0][rows, None, None]
            to_left[rows] = (right[rows] @ slope.transpose(1, 2)).mul_(scale)
            to_right[rows] = (left[rows] @ slope).mul_(scale)
        return to_left, to_right, None, None, None


def coordinate_term(
    left: Tensor, right: Tensor, targets: Sequence[Tensor], groups: Sequence[Group], distance: Distance
) -> Tensor:
    """The term of a matrix with one use under a distance that needs coordinates."""
    return CoordinateTerm.apply(left, right, targets, groups, distance.l1_weight)


def _apart(left: Tensor, right: Tensor, target: Tensor) -> Tensor:
    return torch.baddbmm(target.expand(len(left), -1, -1), left.transpose(1, 2), right, beta=-1)


def _pieces(
    left: Tensor, right: Tensor, targets: Sequence[Tensor], groups: Sequence[Group]
) -> list[tuple[slice, Tensor]]:
    """Slices of rows that share a target and whose dense gradients fit into one piece."""
    most = max(1, PIECE // (left.shape[2] * right.shape[2]))
    return [
        (slice(first, min(first + most, group.first + group.count)), targets[group.target])
        for group in groups
        for first in range(group.first, group.first + group.count, most)
    ]
