"""The span of a matrix of low rank without its whole decomposition.

The rows of a few sentences' gradient fill a few directions, and all others hold rounding. A random sketch shows these
few, two further products sharpen them. There is an answer only where it is proved: that the spectrum falls nowhere
farther than at the end that was found, and that the directions are off the singular ones by far less than rounding
turns these. Else the whole decomposition must be made.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

# Directions that are sketched, and how many of them must show rounding. Narrower matrices are decomposed at once.
SKETCHED, SPARE, NARROW = 48, 8, 256
# How far off directions may be, against what rounding turns them by.
OFF = 1e-2
# Values below this share of the largest are lost where squares are added up.
LOST = 1e-6

Ends = Callable[[Tensor, float], int | None]


class LowRank(NamedTuple):
    """The singular values above rounding, the directions of these and, after them, of all others, and what is left.

    `following` is the next singular value, `left` the root of the sum of squares of all others.
    """

    sizes: Tensor
    directions: Tensor
    following: float
    left: float


def low_rank(matrix: Tensor, end_of: Ends) -> LowRank | None:
    """What is above rounding in a matrix, (rows, width); None where that is not a few directions, or not certain.

    `end_of` says after how many singular values a spectrum ends, given these and the largest.
    """
    rows, width = matrix.shape
    if width < NARROW or rows <= width:
        return None
    mix = torch.randn(SKETCHED, rows, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    sketch = mix.to(matrix) @ matrix
    shown = torch.linalg.svdvals(sketch)
    if end_of(shown, float(shown[0])) is None:
        return None
    inside = torch.linalg.qr(matrix @ torch.linalg.qr(sketch.T).Q).Q
    _, sizes, directions = torch.linalg.svd(inside.T @ matrix, full_matrices=False)
    end = end_of(sizes, float(sizes[0]))
    if end is None or end > SKETCHED - SPARE:
        return None
    kept = directions[:end]
    seen = matrix @ kept.T
    rest = matrix - seen @ kept
    if not (_are_singular(kept, sizes[:end], seen, rest) and _ends_there(kept, sizes[:end], rest, end_of)):
        return None
    outside = torch.linalg.qr(kept.T, mode="complete").Q[:, end:].T
    return LowRank(sizes[:end], torch.cat([kept, outside]), float(sizes[end]), float(rest.norm()))


def _are_singular(directions: Tensor, sizes: Tensor, seen: Tensor, rest: Tensor) -> bool:
    """Whether directions are singular ones of a matrix, of which they are `seen` and leave `rest`.

    Then their images are orthogonal to what is left. Rounding turns a direction by (its size on an entry / the
    singular value) in every dimension outside.
    """
    off = (rest.T @ seen).norm(dim=0) / sizes
    return bool((off <= OFF * rest.norm() * len(rest) ** -0.5).all())


def _ends_there(directions: Tensor, sizes: Tensor, rest: Tensor, end_of: Ends) -> bool:
    """Whether the spectrum falls farthest after these values, whatever those of the rest are.

    The largest of the rest is at most the fourth root of the sum of all fourth powers. If the smallest is at least
    the square of that over the last of `sizes`, then no fall among them is as large as the one before them.
    """
    squares = rest.T @ rest
    most = float(squares.norm()) ** 0.5
    if most == 0 or end_of(torch.cat([sizes, sizes.new_tensor([most])]), float(sizes[0])) != len(sizes):
        return False
    least = max(most / float(sizes[-1]), LOST)
    tested = squares / most**2 + directions.T @ directions
    tested.diagonal().sub_(least**2)
    return not int(torch.linalg.cholesky_ex(tested).info)  # it is positive: no value is smaller
