"""How long an attack may go on, and how it is told to stop early."""

from __future__ import annotations

import re
import time
from typing import Literal

from gradleak.errors import GradleakError

StopReason = Literal["completed", "budget-exhausted", "interrupted"]

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}


def parse_duration(text: str) -> float:
    """Seconds of a duration such as 90, 60s, 5m or 1.5h.

    >>> parse_duration("5m"), parse_duration("60s"), parse_duration("1.5h")
    (300.0, 60.0, 5400.0)
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smh]?)\s*", text)
    if not match or float(match[1]) <= 0:
        raise GradleakError(f"{text!r} is not a duration; write 60s, 5m or 1.5h")
    return float(match[1]) * _UNITS[match[2]]


class Budget:
    """A wall-clock limit that starts on creation, and a switch that stops the work from outside.

    Attacks ask `over` between steps and then hand back the best they have.

    >>> Budget().over, Budget(seconds=0).over
    (False, True)
    """

    def __init__(self, seconds: float | None = None) -> None:
        self.seconds = seconds
        self._start = time.monotonic()
        self._interrupted = False

    def interrupt(self) -> None:
        """Ask the running attack to stop at its next step."""
        self._interrupted = True

    @property
    def interrupted(self) -> bool:
        return self._interrupted

    @property
    def over(self) -> bool:
        spent = time.monotonic() - self._start
        return self._interrupted or (self.seconds is not None and spent >= self.seconds)

    def part(self, share: float) -> Budget:
        """A budget of a share of the time left, which ends when this one does."""
        left = None if self.seconds is None else max(0.0, self.seconds - (time.monotonic() - self._start))
        return _Part(self, None if left is None else share * left)

    @property
    def reason(self) -> StopReason:
        """Why work that ends now has ended."""
        if self.interrupted:
            return "interrupted"
        return "budget-exhausted" if self.over else "completed"


class _Part(Budget):
    def __init__(self, whole: Budget, seconds: float | None) -> None:
        super().__init__(seconds)
        self._whole = whole

    @property
    def interrupted(self) -> bool:
        return self._whole.interrupted

    @property
    def over(self) -> bool:
        return super().over or self._whole.over
