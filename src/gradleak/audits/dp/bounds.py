"""From how often an attacker is right to how much privacy is lost at least."""

from __future__ import annotations

import math

import scipy  # its parts are loaded when they are first used

# How sure a bound is. A right implementation is called broken with a chance of one minus this, or less.
SURE = 0.99
# Beyond this, e^ε / (1 + e^ε) is 1 to rounding.
MOST_EPSILON = 30.0


def least_share(right: int, tries: int, sure: float = SURE) -> float:
    """The share of right answers that so many right ones show at least (Clopper and Pearson, one-sided).

    >>> round(least_share(30, 40), 3), least_share(0, 40)
    (0.559, 0.0)
    """
    return float(scipy.special.betaincinv(right, tries - right + 1, 1 - sure)) if right else 0.0


def least_loss(right: int, tries: int, candidates: int, sure: float = SURE) -> float:
    """By how many deviations of its noise one example moves the updates, at least.

    Gaussian noise of multiplier z over T steps promises √T / z at most. An attacker who picks one of N candidates,
    each as likely as the others, is right with a probability of Φ(Φ⁻¹(1/N) + that) at most.

    >>> round(least_loss(150, 200, 16), 2), least_loss(13, 200, 16)
    (1.98, 0.0)
    """
    share = least_share(right, tries, sure)
    if share <= 1 / candidates:
        return 0.0
    return float(scipy.special.ndtri(share) - scipy.special.ndtri(1 / candidates))


def chance_of_guesses(guesses: int, right: int, examples: int, epsilon: float, delta: float) -> float:
    """How likely so many right guesses, or more, are at most if a training is (ε, δ)-private.

    Each of `examples` was in the training or not by the throw of a coin, all in one run; the attacker guesses of some
    of them which. With δ = 0 every guess is right with a probability of e^ε / (1 + e^ε) at most, whatever the others
    are; δ adds a term (Steinke, Nasr and Jagielski 2023, Corollary 5.4).

    >>> round(chance_of_guesses(20, 20, 100, 1.0, 0.0), 4), chance_of_guesses(20, 10, 100, 1.0, 1e-5) > 0.9
    (0.0019, True)
    """
    share = 1 / (1 + math.exp(-min(epsilon, MOST_EPSILON)))
    tail = _at_least(right, guesses, share)
    worst, below = 0.0, 0.0
    for fewer in range(1, right + 1):
        below += _exactly(right - fewer, guesses, share)
        worst = max(worst, below / fewer)
    return min(1.0, tail + 2 * examples * delta * worst)


def least_epsilon(guesses: int, right: int, examples: int, delta: float, sure: float = SURE) -> float:
    """The largest ε that so many right guesses exclude.

    >>> round(least_epsilon(40, 40, 100, 1e-5), 2), least_epsilon(40, 20, 100, 1e-5)
    (2.1, 0.0)
    """
    low, high = 0.0, MOST_EPSILON
    if chance_of_guesses(guesses, right, examples, low, delta) > 1 - sure:
        return 0.0
    while high - low > 1e-3:
        middle = (low + high) / 2
        excluded = chance_of_guesses(guesses, right, examples, middle, delta) <= 1 - sure
        low, high = (middle, high) if excluded else (low, middle)
    return low


def _at_least(count: int, tries: int, share: float) -> float:
    return float(scipy.special.betainc(count, tries - count + 1, share)) if count else 1.0


def _exactly(count: int, tries: int, share: float) -> float:
    log_ways = math.lgamma(tries + 1) - math.lgamma(count + 1) - math.lgamma(tries - count + 1)
    return math.exp(log_ways + count * math.log(share) + (tries - count) * math.log1p(-share))
