"""The space a layer's inputs span, read off the gradient of its weights.

The gradient of a linear layer is a sum over tokens of the output gradient at the token times the layer's input
there. Its rows therefore lie in the span of the inputs, and fill it while there are fewer tokens than
dimensions. Whether a guessed input was there is then a question of linear algebra: how far is it from the span?
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from gradleak.attacks.spans.low_rank import low_rank

# The singular values end where the next is smaller by this factor and small against the first.
GAP = 10.0
SMALL = 1e-4
# Once the noise is known, values so many times above the largest that noise gives are signal.
ABOVE = 3.0
# With fewer dimensions than this outside the span, or one in fifty, wrong states may fit by chance.
LEAST_OUTSIDE = 4
# What counts as rounding in a spectrum, against its largest value.
SPECTRUM_NOISE = 1e-6
# Directions of drift may fill all but one in so many dimensions.
DRIFT_LEAVES = 8
# A column this much smaller than the largest is of a dimension in which no input has anything.
DEAD = 1e-9
# A distance is noise up to so many times what noise is expected to give.
TOLERANCE = 10.0
# What rounding in fp32 leaves of a state computed once, relative to its size.
STATE_ROUNDING = 3e-7


@dataclass(frozen=True)
class Span:
    """An orthonormal basis of the span and of its complement, and how exactly they are known.

    `reach` is the distance up to which states count as inside where something else than rounding decides it.
    """

    basis: Tensor
    complement: Tensor
    sizes: Tensor
    noise: float
    gap: float
    scales: tuple[float, ...]
    map: Tensor | None = None
    reach: float | None = None

    @property
    def rank(self) -> int:
        return len(self.basis)

    @property
    def width(self) -> int:
        return self.basis.shape[1]

    def unit(self, states: Tensor) -> Tensor:
        """Unit vectors along the states, as the matrix saw them."""
        seen = states if self.map is None else states @ self.map.to(states).T
        return F.normalize(seen, dim=-1)

    def distances(self, states: Tensor) -> Tensor:
        """How far unit vectors along the states are from the span, 0 to 1."""
        return (self.unit(states.to(self.complement)) @ self.complement.T).norm(dim=-1)

    def floors(self, states: Tensor) -> Tensor:
        """The distance that numerical noise alone would put between a true input and the span.

        Noise turns the singular direction i by (noise / its singular value) in every dimension outside the span, so
        a state is off by its own components along the directions, weighed by that.
        """
        weights = (self.unit(states.to(self.basis)) @ self.basis.T) / self.sizes
        return self.noise * len(self.complement) ** 0.5 * weights.norm(dim=-1) + STATE_ROUNDING

    def limits(self, states: Tensor) -> Tensor:
        """The distances up to which states count as inside."""
        if self.reach is not None:
            return torch.full(states.shape[:-1], self.reach, dtype=self.basis.dtype, device=states.device)
        return TOLERANCE * self.floors(states)


def span_of(
    matrices: Sequence[Tensor],
    before: Span | None = None,
    narrow: bool = False,
    outside: int | None = None,
    edges: Sequence[float] | None = None,
    most: float = 1.0,
) -> Span | None:
    """The span of the rows of several (outputs, inputs) gradients of the same input; None if its rank does not show.

    Each is scaled to norm 1, so that none is lost beside another. The rank is where singular values fall most; below
    is rounding, whose level follows from the values there. If `before` is the span of
    the same matrices before something was taken out of them, its scales and its noise still hold. What was taken out
    leaves rounding of its own, above the noise; `narrow` cuts it off at the largest fall, and perhaps a weak
    input with it. `outside` is the fewest dimensions that must be left outside; fewer than usual serve only those
    who measure how often wrong states fit (`chance.py`). Inputs that drifted leave no gap: `edges` are the largest
    singular values that rounding gives each matrix at least, by which it is then scaled; at `most` they are so many
    times larger, which the lower end of the spectrum shows. Whatever stands above is span.

    >>> inputs, output_gradients = torch.randn(3, 8).double(), torch.randn(20, 3).double()
    >>> span = span_of([output_gradients @ inputs])
    >>> span.rank, bool(span.distances(inputs).max() < 1e-6), bool(span.distances(torch.randn(8)) > 1e-3)
    (3, True, True)
    """
    scales = _scales(matrices, edges) if before is None else before.scales
    scaled = [m.double() / scale for m, scale in zip(matrices, scales, strict=True) if scale > 0]
    if not scaled:
        return None
    stacked = torch.cat(scaled)
    rows, width = stacked.shape
    few = low_rank(stacked, _end) if before is None and edges is None else None
    if few is not None:
        noise = few.left / ((rows - len(few.sizes)) * (width - len(few.sizes))) ** 0.5
        return _span(few.directions, few.sizes, noise, few.following, scales)
    sizes, directions = _decompose(stacked)
    if edges is not None:
        least = _edge([len(matrix) for matrix in scaled], width)
        end: int | None = min(_standing(sizes, rows, width, least, most), width - width // DRIFT_LEAVES)
    elif before is None:
        end = _end(sizes, float(sizes[0]))
        if end is None or width - end < least_outside(width):
            # Rounding is smaller in columns that are, so its own spectrum falls where only such a dimension is left.
            # With columns of one size it does not, and the rank is the same.
            alive = stacked[:, _live(stacked)]
            even = torch.linalg.svdvals(alive / alive.norm(dim=0))
            end = _end(even, float(even[0]))
    else:
        above = int((sizes > ABOVE * before.noise * (rows**0.5 + width**0.5)).sum())
        fall = _end(sizes[: above + 1], float(before.sizes[0])) if narrow else None
        end = fall or above or None
    left = len(directions) - (end or 0)
    if end is None or end == len(sizes) or left < (least_outside(width) if outside is None else outside):
        return None
    noise = float((sizes[end:].square().sum() / max(1, (rows - end) * left)).sqrt())
    noise = noise if before is None else max(noise, before.noise)
    return _span(directions, sizes[:end], noise, float(sizes[end]), scales)


def _span(directions: Tensor, sizes: Tensor, noise: float, following: float, scales: tuple[float, ...]) -> Span:
    """The span of as many of the directions as there are sizes; `following` is the size after these."""
    end, gap = len(sizes), float(sizes[-1]) / max(following, 1e-300)
    return Span(directions[:end], directions[end:], sizes, noise, gap, scales)


def least_outside(width: int) -> int:
    """The dimensions outside a span with which wrong states never fit it by chance, so that none need be measured."""
    return max(LEAST_OUTSIDE, width // 50)


def numerical_rank(matrix: Tensor) -> int:
    """How many singular values stand above rounding.

    >>> numerical_rank(torch.ones(4, 3)), numerical_rank(torch.zeros(4, 3))
    (1, 0)
    """
    own = matrix.double()
    square = own @ own.T if len(own) < own.shape[1] else own.T @ own  # far cheaper than singular values
    squares = torch.linalg.eigvalsh(square)
    return int((squares > SPECTRUM_NOISE**2 * squares[-1]).sum())


def _decompose(stacked: Tensor) -> tuple[Tensor, Tensor]:
    """The singular values, and the right singular vectors as rows, with those of the null space last.

    Dimensions in which no input has anything are left out: norms of real models have weights of zero, and spectra
    would fall from rounding to nothing there, farther than from the inputs to rounding.
    """
    live = _live(stacked)
    if not bool(live.all()):
        sizes, inside = _decompose(stacked[:, live])
        directions = stacked.new_zeros(len(inside), len(live))
        directions[:, live] = inside
        return sizes, directions
    rows, width = stacked.shape
    if rows > width:  # the same values and directions from a matrix no taller than wide
        stacked = torch.linalg.qr(stacked, mode="r").R
    _, sizes, directions = torch.linalg.svd(stacked, full_matrices=True)
    return sizes, directions


def _live(stacked: Tensor) -> Tensor:
    """Which columns have anything in them."""
    scales = stacked.norm(dim=0)
    return scales > DEAD * scales.max()


def _edge(heights: Sequence[int], width: int) -> float:
    """The largest singular value of a stack of noise matrices, each of which alone has one of 1."""
    noises = [1 / (rows**0.5 + width**0.5) for rows in heights]
    return sum(rows * noise**2 for rows, noise in zip(heights, noises, strict=True)) ** 0.5 + width**0.5 * max(noises)


def _standing(sizes: Tensor, rows: int, width: int, least: float, most: float) -> int:
    """How many values stand above noise, whose largest is from `least` to `most` times that.

    Noise alone has values from its size times (root of rows - root of width) to its size times their sum, about
    evenly. Three quarters down the spectrum they are next to always its own.
    """
    long, short = sorted((rows**0.5, width**0.5), reverse=True)
    shown = float(sizes[3 * len(sizes) // 4]) * (long + short) / (long - short / 2)
    return int((sizes > min(max(shown, least), most * least)).sum())


def _scales(matrices: Sequence[Tensor], edges: Sequence[float] | None) -> tuple[float, ...]:
    """What matrices are divided by: their norms, or what drift and rounding leave nothing below."""
    norms = [float(matrix.double().norm()) for matrix in matrices]
    if edges is None:
        return tuple(norms)
    return tuple(max(edge, SPECTRUM_NOISE * norm) if norm else 0.0 for edge, norm in zip(edges, norms, strict=True))


def _end(sizes: Tensor, largest: float) -> int | None:
    """After how many values the spectrum falls off, to values small against the largest; None if it never does."""
    falls = sizes[:-1] / sizes[1:].clamp_min(largest * 1e-16)
    falls = torch.where(sizes[1:] < SMALL * largest, falls, torch.ones_like(falls))
    if not len(falls):
        return None
    end = int(falls.argmax()) + 1
    return end if float(falls[end - 1]) >= GAP else None
