"""How often wrong states fit a span by chance: what decides how many dimensions must lie outside it.

A wrong state's distance from a span is the length of its part in the m dimensions outside. Were the state a random
direction, the square of that would be a small multiple of a chi-square of m degrees. States are no random directions:
the dimensions that a nearly full batch leaves over are those in which states hardly differ, and wrong states come a
hundred times nearer than random ones. So the law is kept and its scale is measured, on states of the model itself.
"""

from __future__ import annotations

from scipy.stats import chi2
from torch import Tensor

from gradleak.attacks.spans.candidates import TOLERANCE
from gradleak.attacks.spans.spans import Span

# The share of measured distances whose largest fixes the scale: few enough to show the near end, enough to count.
NEAREST = 0.01
# States one token off a right one come nearer than those measured, by up to this factor.
NEARER = 3.0


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
    limit = TOLERANCE * float(span.floors(wrong).square().mean().sqrt())
    dimensions = len(span.complement)
    scale = nearest / NEARER / chi2.ppf(NEAREST, dimensions) ** 0.5
    return float(chi2.cdf((limit / scale) ** 2, dimensions)) if scale else 1.0
