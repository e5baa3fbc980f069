"""Pieces of an image from linear equations: what they determine, how well, and two guesses for the rest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

# A direction is taken as known if its standard error is below this, with pixels from 0 to 1.
KNOWN = 0.05
# Relative rounding of sums in fp32, where nothing measures it.
ROUNDING = 2e-7
SMOOTHING_STEPS = 200
# Rounding errors are spread evenly between their limits, which makes their standard deviation so much of a step.
EVENLY = 12**-0.5


@dataclass(frozen=True)
class Solution:
    """Pieces that solve the equations: one answer if they determine it, else two that differ where they do not.

    `error` is the largest standard error of a value of the pieces. It is None where the equations do not determine
    all of them, or where there are no more equations than unknowns, so that nothing measures it. `residual` is what
    is left of the equations' right side, as a share of it, `known` how many directions among the pieces they show.
    """

    answers: list[Tensor]
    error: float | None
    residual: float
    known: int


def solve(outputs: Tensor, weight: Tensor, start: Tensor, smooth: Callable[[Tensor], Tensor]) -> Solution:
    """The pieces X of outputsᵀ X = weight, outputs being (pieces, width).

    Where they are not determined, the first answer is the nearest to `start`, by which equal output gradients mean
    equal pieces, the second the smoothest; `smooth` is the gradient of the roughness of pieces.
    """
    pieces, live = len(outputs), int((outputs != 0).any(dim=0).sum())  # units that are off make no equation
    rest = weight - outputs.T @ start
    left, sizes, right = torch.linalg.svd(outputs.T, full_matrices=False)  # (width, n), (n), (n, pieces)
    shown = left.T @ rest
    unexplained, size = float((rest - left @ shown).square().sum()), float(weight.square().sum())
    freedom = (live - pieces) * weight.shape[1]
    measured = (unexplained / freedom) ** 0.5 if freedom > 0 else 0.0
    noise = max(measured, ROUNDING * (size / weight.numel()) ** 0.5, _coarseness(weight))
    strong = sizes * KNOWN > noise
    nearest = start + right[strong].T @ (shown[strong] / sizes[strong, None])
    determined = int(strong.sum()) == pieces
    answers = [nearest] if determined else [nearest, nearest + _smoothest(nearest, right[strong], smooth)]
    error = noise * float((right.T / sizes).square().sum(dim=1).max()) ** 0.5 if determined and freedom > 0 else None
    residual = float((weight - outputs.T @ nearest).square().sum()) / size if size else 1.0
    return Solution(answers, error, residual**0.5, int(strong.sum()))


def _coarseness(values: Tensor) -> float:
    """The standard error of numbers that were rounded to a grid or cut off at a limit; 0 if they were not.

    Signs alone, or the largest entries alone, can make equations that hold exactly, for a picture that nobody had.
    A grid shows by values that come again, a limit by zeros: what became zero may have been as large as the rest.

    >>> round(_coarseness(torch.tensor([-1.0, 1.0, 1.0, 1.0])), 3), _coarseness(torch.tensor([0.3, 0.1, -0.2]))
    (0.577, 0.0)
    """
    flat = values.flatten()
    gaps, sizes = flat.unique().diff(), flat.abs()
    step = float(gaps.min()) * EVENLY if len(gaps) and 2 * (len(gaps) + 1) <= len(flat) else 0.0
    zeros = sizes == 0
    limit = float(sizes[~zeros].min()) if bool(zeros.any()) and not bool(zeros.all()) else 0.0
    return max(step, limit)


def _smoothest(pieces: Tensor, known: Tensor, smooth: Callable[[Tensor], Tensor]) -> Tensor:
    """What to add to pieces outside the known directions so that their roughness is least, by conjugate gradients."""

    def free(change: Tensor) -> Tensor:
        return change - known.T @ (known @ change)

    total = torch.zeros_like(pieces)
    left = free(-smooth(pieces))
    along, size = left, float(left.square().sum())
    first = size
    for _ in range(SMOOTHING_STEPS):
        if size <= 1e-12 * first:
            break
        bent = free(smooth(along))
        step = size / float((along * bent).sum())
        total = total + step * along
        left = left - step * bent
        before, size = size, float(left.square().sum())
        along = left + size / before * along
    return total


def roughness_gradient(image: Tensor) -> Tensor:
    """The gradient of half the squared differences of neighbouring pixels; linear in the image.

    >>> roughness_gradient(torch.tensor([[[0.0, 1.0], [0.0, 1.0]]])).tolist()
    [[[-1.0, 1.0], [-1.0, 1.0]]]
    """
    out = torch.zeros_like(image)
    for dim in (-2, -1):
        steps = image.diff(dim=dim)
        length = image.shape[dim]
        out.narrow(dim, 1, length - 1).add_(steps)
        out.narrow(dim, 0, length - 1).sub_(steps)
    return out
