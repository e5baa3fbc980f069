"""The privacy that noise and clipping guarantee: by Opacus' accountant, or a closed-form bound beyond its reach."""

from __future__ import annotations

import functools
import math
import warnings
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import scipy  # its parts are loaded when they are first used
from numpy.typing import NDArray

from gradleak.core.errors import GradleakError

# How exactly ε is computed; the accountant's grid grows as this shrinks.
PRECISION = 0.003
# Where the grid would be larger than this (about 300 MB, a second or two), ε is computed less exactly, but to 1 %.
MOST_POINTS = 1 << 21
# Beyond these the accountant's floating-point numbers overflow or drown in rounding.
MOST_LOSS, LEAST_DELTA = 600.0, 1e-10
# The noise looked for: below, nothing is hidden; beyond, nothing is learned.
LEAST_NOISE, MOST_NOISE = 1e-12, 1e6
# How exactly, by how many lines at most before halving, and how much farther off the first point of a line is.
TO_A_THOUSANDTH, MOST_TRIED, FURTHER = 1e-3, 10, 1.1
# Of the Rényi divergences that the bound takes the best of: the less is lost, the higher the best one.
_ORDERS = np.array([*range(2, 64), 64, 96, 128, 192, 256, 384, 512, 768, 1024], dtype=float)


@dataclass(frozen=True)
class Spent:
    """ε, never too small, and where it comes from: the bound is looser than the accountant."""

    epsilon: float
    by: Literal["accountant", "bound"]

    def __str__(self) -> str:
        """
        >>> str(Spent(1.834, "accountant")), str(Spent(87654.3, "bound"))
        ('ε = 1.83', 'ε ≤ 8.77e+04 (a closed-form bound, out of reach of the accountant)')
        """
        value = f"{self.epsilon:.2f}" if 0.01 <= self.epsilon < 1000 else f"{self.epsilon:.3g}"
        bound = f"ε ≤ {value} (a closed-form bound, out of reach of the accountant)"
        return f"ε = {value}" if self.by == "accountant" else bound


@functools.cache
def spent(noise: float, sample_rate: float, steps: int, delta: float) -> Spent:
    """ε of `steps` steps of DP-SGD, each on a random share of the rows. Takes bounded time and memory.

    >>> spent(1.0, 0.01, 1000, 1e-5)
    Spent(epsilon=1.83..., by='accountant')
    >>> spent(0.01, 0.01, 500, 1e-5).by
    'bound'
    """
    bound = closed_form(noise, sample_rate, steps, delta)
    try:
        counted = _accountant(noise, sample_rate, steps, delta, bound)
    except (ImportError, ArithmeticError, RuntimeError, ValueError):  # Opacus is missing, or gives up
        counted = math.inf
    # A bound below the accountant's is as true, and tighter: the accountant adds its error.
    return Spent(counted, "accountant") if 0 <= counted < bound else Spent(bound, "bound")


@functools.cache
def noise_for(target: float, sample_rate: float, steps: int, delta: float) -> float:
    """The least noise multiplier whose ε stays below the target, to a thousandth of it.

    ε is nearly a power of the noise, so a line through the last two that were tried leads there in a few steps.

    >>> 0.9 < noise_for(1.9, 0.01, 1000, 1e-5) < 1.0
    True
    """
    training = (sample_rate, steps, delta)
    low, high = 0.0, _noise_by_bound(target, *training)
    # The bound's slope is the accountant's, nearly.
    tried = [_Tried(noise, closed_form(noise, *training)) for noise in (FURTHER * high, high)]
    while high - low > TO_A_THOUSANDTH * high and high > LEAST_NOISE:
        aimed = _aimed(tried[-2], tried[-1], target)
        # Past the aim on the side of the end that is farther off, so that both come near.
        aimed *= 1 - TO_A_THOUSANDTH / 3 if tried[-1].epsilon <= target else 1 + TO_A_THOUSANDTH / 3
        usable = len(tried) < MOST_TRIED and low < aimed < high
        noise = aimed if usable else (low + high) / 2
        epsilon = spent(noise, *training).epsilon
        tried.append(_Tried(noise, epsilon))
        low, high = (low, noise) if epsilon <= target else (noise, high)
    return high


class _Tried(NamedTuple):
    noise: float
    epsilon: float


def _aimed(one: _Tried, other: _Tried, target: float) -> float:
    """The noise at which the line through two logarithms reaches the target; not a number if there is none."""
    with np.errstate(all="ignore"):
        noises, epsilons = np.log([one.noise, other.noise]), np.log([one.epsilon, other.epsilon])
        slope = (epsilons[1] - epsilons[0]) / (noises[1] - noises[0])
        return float(np.exp(noises[1] + (np.log(target) - epsilons[1]) / slope))


def _noise_by_bound(target: float, sample_rate: float, steps: int, delta: float) -> float:
    """The same by the closed form alone, which takes no time: never less noise than is needed."""
    low, high = 0.0, 0.5
    while closed_form(high, sample_rate, steps, delta) > target:
        high *= 2
        if high > MOST_NOISE:
            raise GradleakError(f"no noise reaches ε = {target:g} after {steps} steps at δ = {delta:g}")
    while high - low > TO_A_THOUSANDTH * high and high > LEAST_NOISE:
        middle = (low + high) / 2
        low, high = (low, middle) if closed_form(middle, sample_rate, steps, delta) <= target else (middle, high)
    return high


def closed_form(noise: float, sample_rate: float, steps: int, delta: float) -> float:
    """An upper bound of ε for any setting, in a moment: the smaller of two that are tight at different strengths.

    >>> closed_form(1.0, 0.01, 1000, 1e-5) < 2.2
    True
    """
    return max(0.0, min(_by_orders(noise, sample_rate, steps, delta), _by_draws(noise, sample_rate, steps, delta)))


def _by_orders(noise: float, sample_rate: float, steps: int, delta: float) -> float:
    """By Rényi divergences of whole orders (Mironov et al. 2019), turned into ε as by Balle et al. (2020)."""
    if sample_rate == 1:
        divergences = _ORDERS / 2 / noise**2
    else:
        order, drawn = _ORDERS[:, None], np.arange(_ORDERS[-1] + 1)
        chances = _log_binomials() + drawn * math.log(sample_rate) + (order - drawn) * math.log1p(-sample_rate)
        logs = np.where(drawn <= order, chances + drawn * (drawn - 1) / 2 / noise**2, -np.inf)
        divergences = scipy.special.logsumexp(logs, axis=1) / (_ORDERS - 1)
    spread = (math.log(delta) + np.log(_ORDERS)) / (_ORDERS - 1)
    return float(np.min(steps * divergences - spread + np.log1p(-1 / _ORDERS)))


@functools.cache
def _log_binomials() -> NDArray[np.float64]:
    """Of every order, how many ways there are to draw so many; of no meaning above the order."""
    order, drawn = _ORDERS[:, None], np.arange(_ORDERS[-1] + 1)
    gammaln = scipy.special.gammaln
    binomials = gammaln(order + 1) - gammaln(drawn + 1) - gammaln(np.maximum(order - drawn, 0) + 1)
    return np.asarray(binomials, dtype=np.float64)


def _by_draws(noise: float, sample_rate: float, steps: int, delta: float) -> float:
    """As if the attacker saw when a row was drawn: rarely more often than Bernstein's inequality allows.

    Half of δ is for being drawn more often, half for as many Gaussian mechanisms (zero-concentrated privacy).
    """
    rare, mean = math.log(2 / delta), steps * sample_rate
    draws = min(steps, mean + rare / 3 + math.sqrt(rare * rare / 9 + 2 * rare * mean))
    concentrated = draws / 2 / noise**2
    return concentrated + 2 * math.sqrt(concentrated * rare)


def _accountant(noise: float, sample_rate: float, steps: int, delta: float, bound: float) -> float:
    """ε by Opacus' PRV accountant; infinite where its grid would be too large."""
    losses = privacy_losses(noise, sample_rate, steps, delta, max(PRECISION, min(0.5, bound / 100)))
    if losses is None:
        return math.inf
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return float(losses.discrete.compute_epsilon(delta, losses.missing, losses.error)[2])


@dataclass(frozen=True)
class Losses:
    """The privacy loss of a whole training on a grid: off by `error` at most, but for a probability of `missing`."""

    discrete: Any
    error: float
    missing: float


@functools.lru_cache(maxsize=8)  # some are 50 MB
def privacy_losses(
    noise: float, sample_rate: float, steps: int, delta: float, most_error: float, precision: float = PRECISION
) -> Losses | None:
    """By Opacus' PRV accountant, on a grid whose size is known beforehand; None where that is too large.

    `delta` is the smallest probability that matters.
    """
    from opacus.accountants.analysis import prv

    rare = delta / 1000
    reach = 3 + max(
        closed_form(noise, sample_rate, steps, rare / 4), closed_form(noise, sample_rate, 1, rare / (8 * steps))
    )
    mesh = 1 / math.sqrt(steps * math.log(12 / rare) / 2)
    error = max(precision, 2 * reach / mesh / MOST_POINTS)
    if delta < LEAST_DELTA or reach > MOST_LOSS or error > most_error:
        return None
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # about overflow at the grid's ends, where nothing is
        loss = prv.PoissonSubsampledGaussianPRV(sample_rate, noise)
        domain = _domain(reach, error * mesh)
        step = prv.discretize(prv.TruncatedPrivacyRandomVariable(loss, domain.t_min, domain.t_max), domain)
        return Losses(prv.compose_heterogeneous([step], [steps]), error, rare)


def _domain(reach: float, step: float) -> Any:
    """A grid that reaches so far at least, of a size that Fourier transforms are quick at; most others are slow."""
    from opacus.accountants.analysis import prv

    half = scipy.fft.next_fast_len(math.ceil(reach / step) + 1, real=True)
    return prv.Domain(-(half - 1) * step, half * step, 2 * half)
