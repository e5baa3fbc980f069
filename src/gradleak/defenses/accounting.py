"""The privacy that noise and clipping guarantee, from Opacus' accountant."""

from __future__ import annotations

import functools
import warnings

from gradleak.core.errors import GradleakError

# How exactly ε is computed; the accountant's grid grows as this shrinks.
PRECISION = 0.003
# The largest noise looked for; beyond it nothing is learned.
MOST_NOISE = 1e4


@functools.cache
def epsilon(noise: float, sample_rate: float, steps: int, delta: float) -> float:
    """ε of `steps` steps of DP-SGD, each on a random share of the rows.

    >>> round(epsilon(1.0, 0.01, 1000, 1e-5), 1)
    1.8
    """
    from opacus.accountants import PRVAccountant

    accountant = PRVAccountant()
    accountant.history = [(noise, sample_rate, steps)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the grid's size; its error is asked for here
        return float(accountant.get_epsilon(delta, eps_error=PRECISION))


@functools.cache
def noise_for(target: float, sample_rate: float, steps: int, delta: float) -> float:
    """The least noise multiplier whose ε stays below the target, to a thousandth of it.

    >>> 0.9 < noise_for(1.9, 0.01, 1000, 1e-5) < 1.0
    True
    """
    low, high = 0.0, 0.5
    while epsilon(high, sample_rate, steps, delta) > target:
        low, high = high, 2 * high
        if high > MOST_NOISE:
            raise GradleakError(f"no noise reaches ε = {target:g} after {steps} steps at δ = {delta:g}")
    while high - low > 1e-3 * high:
        middle = (low + high) / 2
        if middle > 0.05 and epsilon(middle, sample_rate, steps, delta) <= target:
            high = middle
        else:
            low = middle
    return high
