"""Distances that look at single coordinates, formed one layer and a few rows at a time.

Absolute differences and masks need the dense gradient. It exists only while its own term is computed: the forward
pass keeps the factors, the backward pass forms the gradient anew, piece by piece.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from gradleak.matching.distances import Distance
from gradleak.matching.targets import Group

# Coordinates of one dense piece: 16 M floats are 64 MB.
PIECE = 16 << 20

# The terms of some rows, from their factors and the number of the update they are compared with.
PieceTerm = Callable[[Tensor, Tensor, int], Tensor]


def coordinate_term(
    left: Tensor,
    right: Tensor,
    targets: Sequence[Tensor],
    masks: Sequence[Tensor] | None,
    groups: Sequence[Group],
    distance: Distance,
) -> Tensor:
    """The term of a matrix with one use, (R,); only coordinates under the mask count."""

    def term(left: Tensor, right: Tensor, target: int) -> Tensor:
        dense = left.transpose(1, 2) @ right
        wanted = targets[target]
        if masks is not None:
            dense, wanted = dense * masks[target], wanted * masks[target]
        return distance.from_dense(dense.flatten(1), wanted.flatten()[None])

    return _Recomputed.apply(left, right, term, groups)


class _Recomputed(torch.autograd.Function):
    """A function of the factors that is computed in pieces, twice, so that only one piece is ever alive."""

    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor, term: PieceTerm, groups: Sequence[Group]) -> Tensor:
        ctx.save_for_backward(left, right)
        ctx.rest = (term, groups)
        return torch.cat([term(left[rows], right[rows], target) for rows, target in _pieces(left, right, groups)])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None]:
        left, right = ctx.saved_tensors
        term, groups = ctx.rest
        to_left, to_right = torch.empty_like(left), torch.empty_like(right)
        for rows, target in _pieces(left, right, groups):
            with torch.enable_grad():
                leaves = [side[rows].detach().requires_grad_() for side in (left, right)]
                value = term(*leaves, target)
                to_left[rows], to_right[rows] = torch.autograd.grad(value, leaves, grads[0][rows])
        return to_left, to_right, None, None


def _pieces(left: Tensor, right: Tensor, groups: Sequence[Group]) -> Iterator[tuple[slice, int]]:
    """Slices of rows that share a target and whose dense gradients fit into one piece."""
    most = max(1, PIECE // (left.shape[2] * right.shape[2]))
    for group in groups:
        end = group.first + group.count
        for first in range(group.first, end, most):
            yield slice(first, min(first + most, end)), group.target
