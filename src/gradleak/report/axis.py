"""Numbers to places on a page, and round numbers to mark on an axis."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Axis:
    """Values from `first` to `last` drawn from `start` to `end`; either may run backwards.

    >>> Axis(0, 100, 400, 0).at(25)
    300.0
    """

    first: float
    last: float
    start: float
    end: float

    def at(self, value: float) -> float:
        return self.start + (self.end - self.start) * (value - self.first) / (self.last - self.first)

    def inside(self, value: float) -> float:
        """The same, but never beyond the ends."""
        low, high = sorted((self.first, self.last))
        return self.at(min(max(value, low), high))


def ticks(first: float, last: float, about: int = 6) -> list[float]:
    """Round numbers between two values.

    >>> ticks(48.2, 93.1)
    [50.0, 60.0, 70.0, 80.0, 90.0]
    >>> ticks(4.1, 2.2)
    [2.5, 3.0, 3.5, 4.0]
    """
    low, high = sorted((first, last))
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(s for s in (power, 2 * power, 5 * power, 10 * power) if s >= rough)
    return [round(i * step, 10) for i in range(math.ceil(low / step), math.floor(high / step) + 1)]
