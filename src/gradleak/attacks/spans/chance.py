"""How often wrong states fit a span by chance: what decides how many dimensions must lie outside it.

A wrong state's distance from a span is the length of its part in the m dimensions outside. Were the state a random
direction, the square of that would be a small multiple of a chi-square of m degrees. States are no random directions:
the dimensions that a nearly full batch leaves over are those in which states hardly differ, and wrong states come a
hundred times nearer than random ones. So the law is kept and its scale is measured, on states of the model itself.
"""

from __future__ import annotations

import scipy  # its parts are loaded when they are first used; scipy.stats would take a second
from torch import Tensor

from gradleak.attacks.spans.spans import Span

# The share of measured distances whose largest fixes the scale: few enough to show the near end, enough to count.
NEAREST = 0.01
# The share of them that, beside their median, shows how far they spread, and the degrees that are looked among.
FEW, DEGREES = 0.05, (0.5, 200.0)
# States one token off a right one come nearer than those measured, by up to this factor.
NEARER = 3.0


def _quantile(share: float, degrees: float) -> float:
    """The value that this share of a chi-square falls short of."""
    return float(2 * scipy.special.gammaincinv(degrees / 2, share))


def chance(span: Span, wrong: Tensor) -> float:
    """The chance that a wrong state is within the span's limit, from some wrong states, (states, width).

    >>> import torch
    >>> from gradleak.attacks.spans.spans import span_of
    >>> inputs = torch.randn(6, 8).double()
    >>> span = span_of([torch.randn(20, 6).double() @ inputs], outside=1)
    >>> chance(span, torch.randn(500, 8)) < 1e-6, chance(span, inputs.repeat(50, 1)) > 0.9
    (True, True)
    """
    nearest = float(span.distances(wrong).quantile(NEAREST))
    limit = float(span.limits(wrong).square().mean().sqrt())
    dimensions = len(span.complement)
    scale = nearest / NEARER / _quantile(NEAREST, dimensions) ** 0.5
    return float(scipy.special.gammainc(dimensions / 2, (limit / scale) ** 2 / 2)) if scale else 1.0


def reach(span: Span, wrong: Tensor, rate: float) -> float:
    """The distance that so small a share of wrong states falls short of: a limit where nothing else gives one.

    How many degrees the chi-square has shows in how far measured distances spread.

    >>> import torch
    >>> from gradleak.attacks.spans.spans import span_of
    >>> span = span_of([torch.randn(60, 5).double() @ torch.randn(5, 40).double()])
    >>> wrong, others = torch.randn(500, 40), torch.randn(5000, 40)
    >>> bool((span.distances(others) > reach(span, wrong, 1e-4)).all())
    True
    """
    low, middle = (float(span.distances(wrong).quantile(share)) for share in (FEW, 0.5))
    if not low:
        return 0.0

    def too_wide(degrees: float) -> float:
        return float((_quantile(FEW, degrees) / _quantile(0.5, degrees)) ** 0.5 - low / middle)

    degrees = (
        scipy.optimize.brentq(too_wide, *DEGREES) if too_wide(DEGREES[0]) < 0 < too_wide(DEGREES[1]) else DEGREES[0]
    )
    return float(middle / NEARER * (_quantile(rate, degrees) / _quantile(0.5, degrees)) ** 0.5)
