"""Distances that look at single coordinates, formed one layer and a few rows at a time.

Absolute differences and masks need the dense gradient. It exists only while its own term and the term's derivative
by the factors are computed, in pieces that stay in the processor's cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from gradleak.matching.distances import Distance
from gradleak.matching.targets import Group

# Coordinates of one dense piece, if a single row is not more: 2 MB of floats.
PIECE = 1 << 19
# With a smaller share of the coordinates counting, it is cheaper to compute just these.
SPARSE = 0.02


def coordinate_term(
    left: Tensor,
    right: Tensor,
    targets: Sequence[Tensor],
    masks: Sequence[Tensor] | None,
    groups: Sequence[Group],
    distance: Distance,
) -> Tensor:
    """The term of a matrix with one use, (R,); only coordinates under the mask count."""
    return _Pieced.apply(left, right, targets, masks, groups, distance)


def sparse_term(
    left: Tensor,
    right: Tensor,
    targets: Sequence[Tensor],
    places: Sequence[Tensor],
    groups: Sequence[Group],
    distance: Distance,
) -> Tensor:
    """The same where few coordinates count: only these are formed. `places` has their (rows, columns) a target."""
    terms = []
    for group in groups:
        rows, (i, j) = slice(group.first, group.first + group.count), places[group.target]
        dummy = (left[rows][..., i] * right[rows][..., j]).sum(dim=1)
        terms.append(distance.from_dense(dummy, targets[group.target][i, j][None]))
    return torch.cat(terms)


class _Pieced(torch.autograd.Function):
    """A row's derivative needs nothing but the row, so it is taken while the piece is there, and scaled later."""

    @staticmethod
    def forward(
        ctx: Any,
        left: Tensor,
        right: Tensor,
        targets: Sequence[Tensor],
        masks: Sequence[Tensor] | None,
        groups: Sequence[Group],
        distance: Distance,
    ) -> Tensor:
        values = left.new_empty(len(left))
        slopes = [torch.empty_like(left), torch.empty_like(right)] if any(ctx.needs_input_grad) else []
        # The same memory for every piece: fresh memory takes longer than what is computed in it.
        size = (min(_at_once(left, right), len(left)), left.shape[2], right.shape[2])
        room, room_of_slope = left.new_empty(size), left.new_empty(size if slopes else 0)
        for rows, target in _pieces(left, right, groups):
            count, wanted = rows.stop - rows.start, targets[target]
            dense = torch.bmm(left[rows].transpose(1, 2), right[rows], out=room[:count])
            if masks is not None:
                dense, wanted = dense.mul_(masks[target]), wanted * masks[target]
            flat, wanted = dense.flatten(1), wanted.flatten()[None]
            if not slopes:
                values[rows] = distance.in_place(flat, wanted)
                continue
            slope = room_of_slope[:count]
            values[rows] = distance.in_place(flat, wanted, slope.view_as(flat))
            if masks is not None:
                slope.mul_(masks[target])
            torch.bmm(right[rows], slope.transpose(1, 2), out=slopes[0][rows])
            torch.bmm(left[rows], slope, out=slopes[1][rows])
        ctx.save_for_backward(*slopes)
        return values

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        to_left, to_right = (slope * grads[0][:, None, None] for slope in ctx.saved_tensors)
        return to_left, to_right, None, None, None, None


def _pieces(left: Tensor, right: Tensor, groups: Sequence[Group]) -> Iterator[tuple[slice, int]]:
    """Slices of rows that share a target and whose dense gradients fit into one piece."""
    most = _at_once(left, right)
    for group in groups:
        end = group.first + group.count
        for first in range(group.first, end, most):
            yield slice(first, min(first + most, end)), group.target


def _at_once(left: Tensor, right: Tensor) -> int:
    """Rows whose dense gradients fit into one piece."""
    return max(1, PIECE // (left.shape[2] * right.shape[2]))
