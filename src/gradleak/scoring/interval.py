"""A mean never travels without its interval."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy  # its parts are loaded when they are first used; scipy.stats would take a second
from pydantic import BaseModel, ConfigDict


class Interval(BaseModel):
    """A mean over trials with its 95 % interval."""

    model_config = ConfigDict(extra="forbid")

    mean: float
    low: float
    high: float

    def __repr__(self) -> str:
        return f"Interval({self:.4g})"

    def __str__(self) -> str:
        return format(self)

    def __format__(self, form: str) -> str:
        """In whole numbers, or with the format of each of the three.

        >>> change = Interval(mean=43.21, low=30.2, high=55.7)
        >>> f"{change}", f"{change:+.1f}"
        ('43 [30, 56]', '+43.2 [+30.2, +55.7]')
        """
        mean, low, high = (format(value, form or ".0f") for value in (self.mean, self.low, self.high))
        return f"{mean} [{low}, {high}]"


def format_interval(interval: Interval, digits: int = 0, bound_digits: int = 0) -> str:
    """The mean with other digits than the bounds, which are rough enough without.

    >>> format_interval(Interval(mean=43.21, low=30.2, high=55.7), digits=1)
    '43.2 [30, 56]'
    """
    low, high = (f"{bound:.{bound_digits}f}" for bound in (interval.low, interval.high))
    return f"{interval.mean:.{digits}f} [{low}, {high}]"


def mean_interval(values: Sequence[float], floor: float = 0.0, ceiling: float = 100.0) -> Interval:
    """Mean over trials and its 95 % interval, within the range of what is averaged.

    Trials that each gave all or nothing are counted by Clopper and Pearson, so ten without a success still leave room
    for some; other values take Student's. Trials are the unit also where a batch has many sentences, since those of
    one batch are read, or not, together. One trial says nothing about the spread, so its interval is the whole range.

    >>> mean_interval([10, 20, 30, 40])
    Interval(25 [4.457, 45.54])
    >>> mean_interval([100.0, 0.0, 100.0, 100.0])
    Interval(75 [19.41, 99.37])
    >>> mean_interval([0.0] * 10), mean_interval([50.0])
    (Interval(0 [0, 30.85]), Interval(50 [0, 100]))
    """
    if len(values) > 1 and all(value in (floor, ceiling) for value in values):
        return _clopper_pearson(values, floor, ceiling)
    return student(values, floor, ceiling)


def _clopper_pearson(values: Sequence[float], floor: float, ceiling: float) -> Interval:
    """The exact interval of a share, of values that are all at one end of the range or the other."""
    return share_interval(sum(value == ceiling for value in values), len(values), floor, ceiling)


def share_interval(yes: int, total: int, floor: float = 0.0, ceiling: float = 100.0) -> Interval:
    """So many of all, in percent, with the exact interval of Clopper and Pearson.

    >>> share_interval(12, 12)
    Interval(100 [73.54, 100])
    """
    quantile = scipy.special.betaincinv
    low = float(quantile(yes, total - yes + 1, 0.025)) if yes else 0.0
    high = float(quantile(yes + 1, total - yes, 0.975)) if yes < total else 1.0
    mean, low, high = (floor + share * (ceiling - floor) for share in (yes / total, low, high))
    return Interval(mean=mean, low=low, high=high)


def auc_interval(auc: float, inside: int, outside: int) -> Interval:
    """An area under the curve, from 0 to 1, of so many scores of either kind.

    By Hanley and McNeil's variance, taken where each bound itself lies (Newcombe), so that an area of 1 out of a few
    scores is not taken for certain.

    >>> auc_interval(1.0, 4, 100), auc_interval(0.8, 20, 100)
    (Interval(1 [0.709, 1]), Interval(0.8 [0.6605, 0.8947]))
    """
    z, pairs = 1.959964, inside * outside

    def error(area: float) -> float:
        first, second = area / (2 - area), 2 * area**2 / (1 + area)
        more = (inside - 1) * (first - area**2) + (outside - 1) * (second - area**2)
        return float(np.sqrt(max(0.0, area * (1 - area) + more) / pairs))

    def bound(end: float) -> float:
        near, far = auc, end  # the area farthest from the measured one that is still within its error
        for _ in range(60):
            middle = (near + far) / 2
            near, far = (middle, far) if abs(middle - auc) <= z * error(middle) else (near, middle)
        return near

    return Interval(mean=auc, low=bound(0.0), high=bound(1.0))


def widened(interval: Interval, sentences: int, trials: Sequence[float], floor: float, ceiling: float) -> Interval:
    """An interval over single sentences, no narrower than Student's over the trials that they belong to.

    Trials of one sentence each are no more than the sentences are.
    """
    if len(trials) < 2 or sentences == len(trials):
        return interval
    over = student(trials, floor, ceiling)
    return Interval(mean=interval.mean, low=min(interval.low, over.low), high=max(interval.high, over.high))


def welch(first: Sequence[float], second: Sequence[float], reach: float = 100.0) -> Interval:
    """How much the mean of the second lies above that of the first, with Welch's interval; they need not be paired.

    >>> change = welch([1, 2, 3], [11, 12, 13, 14])
    >>> round(change.mean, 1), round(change.low, 1), round(change.high, 1)
    (10.5, 8.3, 12.7)
    """
    ours, theirs = np.asarray(first, dtype=float), np.asarray(second, dtype=float)
    mean = float(theirs.mean() - ours.mean())
    if min(len(ours), len(theirs)) < 2:
        return Interval(mean=mean, low=-reach, high=reach)
    first_error, second_error = (float(data.var(ddof=1)) / len(data) for data in (ours, theirs))
    error = first_error + second_error
    if not error:
        return Interval(mean=mean, low=mean, high=mean)
    share = first_error / error
    freedom = 1 / (share**2 / (len(ours) - 1) + (1 - share) ** 2 / (len(theirs) - 1))
    half = float(scipy.special.stdtrit(freedom, 0.975)) * error**0.5
    return Interval(mean=mean, low=max(mean - half, -reach), high=min(mean + half, reach))


def student(values: Sequence[float], floor: float, ceiling: float, least: float = 0.0) -> Interval:
    """Mean and Student's interval, which holds for a handful of values too; for differences and for scores.

    Values on a coarse scale agree by chance: `least` is the smallest standard deviation that is believed.

    >>> [round(bound, 1) for bound in (student([1, 2, 3], -100, 100).low, student([1, 2, 3], -100, 100).high)]
    [-0.5, 4.5]
    >>> student([0.5, 0.5, 0.5], -100, 100, least=0.5).high > 1.5
    True
    """
    if not values:
        raise ValueError("no values to average")
    data = np.asarray(values, dtype=float)
    mean = float(data.mean())
    if len(data) == 1:
        return Interval(mean=mean, low=floor, high=ceiling)
    spread = max(float(data.std(ddof=1)), least)
    reach = float(scipy.special.stdtrit(len(data) - 1, 0.975)) * spread / float(np.sqrt(len(data)))
    return Interval(mean=mean, low=max(mean - reach, floor), high=min(mean + reach, ceiling))
