"""How often any attack at all can succeed against noise and clipping: the bound from above that DP gives.

An attack shows how much leaks at least. Differential privacy limits how much can leak at most, whoever attacks,
with whatever knowledge and computing power (reconstruction robustness: Balle, Cherubin and Hayes 2022; Hayes,
Mahloujifar and Balle 2023). The argument is short. An attacker guesses something about one example; without the
update no guess is right with a probability above κ. Whatever the attacker answers, "the answer is right" is an
event about the update, and it has a probability of κ at most if the update was made without the example. A test
that raises a false alarm with probability κ detects an example with a certain probability at most: that is the
ceiling. It is concave in κ, so it also holds on average over examples.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np
import scipy  # its parts are loaded when they are first used
from numpy.typing import NDArray

from gradleak.core.errors import GradleakError
from gradleak.defenses.accounting import closed_form, privacy_losses

# Chances of blind guesses that a curve is drawn over.
GUESSES = (0.5, 0.1, 1e-2, 1e-3, 1e-4, 1e-6, 1e-9)
# From here on a ceiling excludes next to nothing.
VACUOUS = 0.9
# The error of privacy losses that is asked for and the most that is allowed: it costs so large a part of κ.
PRECISION, MOST_ERROR = 0.01, 0.02
# Of the pairs of ε and δ that the bound without an accountant takes the best of.
_DELTAS = np.logspace(-14, -0.31, 60)


def one_round(guess: float, noise: float, times: int = 1) -> float:
    """The ceiling where the example is known to be in the batch, which the attacked update is made of.

    `noise` is the multiplier; the example was in `times` noisy steps. Gaussian noise has the closed form
    Φ(Φ⁻¹(κ) + √times / noise).

    >>> [round(one_round(guess, 1.0), 3) for guess in (1 / 16, 1e-3)]
    [0.297, 0.018]
    """
    _check(guess, noise, times)
    if not noise:
        return 1.0 if guess > 0 else 0.0
    return float(scipy.special.ndtr(scipy.special.ndtri(guess) + math.sqrt(times) / noise))


def whole_training(guess: float, noise: float, sample_rate: float, steps: int) -> float:
    """The ceiling for an attacker who sees all updates of a training, each on a random share of the examples.

    By Opacus' accountant, with its error on the safe side; beyond its reach, or without Opacus, by Rényi divergences,
    which is looser.

    >>> whole_training(1e-3, 1.0, 0.01, 1000) < 0.02 < one_round(1e-3, 1.0, 1000)
    True
    """
    _check(guess, noise, steps)
    if not 0 < sample_rate <= 1:
        raise GradleakError(f"{sample_rate:g} is not a share of the rows: from above 0 to 1")
    if sample_rate == 1 or not noise:
        return one_round(guess, noise, steps)
    bounds = [1.0, one_round(guess, noise, steps)]
    curve = _curve(noise, sample_rate, steps)
    if curve is None:
        bounds += [guess * math.exp(min(loss, 700.0)) + delta for loss, delta in _pairs(noise, sample_rate, steps)]
    else:
        guesses, successes, error, missing = curve
        # What the grid may have moved: losses by `error`, and a probability of `missing` altogether.
        worse = min(1.0, (guess + missing) * math.exp(error))
        bounds.append(float(np.interp(worse, guesses, successes)) + missing)
    return max(min(bounds), min(guess, 1.0))


def ceilings(
    noise: float, sample_rate: float = 1.0, steps: int = 1, guesses: Sequence[float] = GUESSES
) -> list[float]:
    """The curve: a ceiling for each chance of a blind guess."""
    return [whole_training(guess, noise, sample_rate, steps) for guess in guesses]


def _check(guess: float, noise: float, times: int) -> None:
    if not 0 <= guess <= 1:
        raise GradleakError(f"{guess:g} is not the chance of a guess: from 0 to 1")
    if not noise >= 0 or times < 1:
        raise GradleakError("a noise multiplier is 0 or more, and there is one step at least")


@functools.lru_cache(maxsize=8)
def _pairs(noise: float, sample_rate: float, steps: int) -> list[tuple[float, float]]:
    """Pairs of ε and δ that the training has: each allows e^ε times the chance of the guess, plus δ."""
    return [(closed_form(noise, sample_rate, steps, float(delta)), float(delta)) for delta in _DELTAS]


@functools.lru_cache(maxsize=8)
def _curve(
    noise: float, sample_rate: float, steps: int
) -> tuple[NDArray[np.float64], NDArray[np.float64], float, float] | None:
    """Of all tests of the privacy loss, the chance of a false alarm and that of a detection, both rising.

    By Neyman and Pearson no test is better. None if the accountant cannot say.
    """
    try:
        losses = privacy_losses(noise, sample_rate, steps, 1e-9, MOST_ERROR, PRECISION)
    except (ImportError, ArithmeticError, RuntimeError, ValueError):  # Opacus is missing, or gives up
        return None
    if losses is None:
        return None
    with np.errstate(all="ignore"):
        chances = np.clip(losses.discrete.pmf, 0.0, None)  # rounding makes some a little negative
        detected = np.flip(chances).cumsum()
        alarmed = np.flip(chances * np.exp(-losses.discrete.domain.ts)).cumsum()
    return np.append(0.0, alarmed), np.append(0.0, np.minimum(detected, 1.0)), losses.error, losses.missing
