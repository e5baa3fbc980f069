"""Timing two things against each other on a machine that never runs evenly."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

CLOSE_ENOUGH = 0.10
AT_LEAST = 5


@dataclass(frozen=True)
class Ratio:
    """How many times faster the second thing is, with its 95 % interval, and both times in seconds."""

    ratio: float
    low: float
    high: float
    slow_seconds: float
    fast_seconds: float
    rounds: int


def compare(
    slow: Callable[[], object], fast: Callable[[], object], *, slow_units: int, fast_units: int, seconds: float
) -> Ratio:
    """Run both in turns until the interval of the ratio is within ±10 %, or the time is over.

    A unit is one attack's step or one candidate; the ratio is of times a unit. What disturbs the machine for a
    while disturbs both sides of a round, so the ratios of single rounds are compared, not the sums.
    """
    slow(), fast()
    slows: list[float] = []
    fasts: list[float] = []
    deadline = time.monotonic() + seconds
    while True:
        slows.append(_time(slow) / slow_units)
        fasts.append(_time(fast) / fast_units)
        result = _summary(slows, fasts)
        settled = result.high - result.low <= 2 * CLOSE_ENOUGH * result.ratio
        if len(slows) >= AT_LEAST and (settled or time.monotonic() > deadline):
            return result


def _time(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _summary(slows: list[float], fasts: list[float]) -> Ratio:
    logs = np.log(np.array(slows) / np.array(fasts))
    draws = np.random.default_rng(0).choice(logs, size=(2000, len(logs)))
    low, high = np.percentile(np.median(draws, axis=1), [2.5, 97.5])
    return Ratio(
        ratio=math.exp(float(np.median(logs))),
        low=math.exp(float(low)),
        high=math.exp(float(high)),
        slow_seconds=statistics.median(slows),
        fast_seconds=statistics.median(fasts),
        rounds=len(slows),
    )
