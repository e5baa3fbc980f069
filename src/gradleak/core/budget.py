"""How long an attack may run, and how it is stopped early."""

from __future__ import annotations

import math
import re
import time
from typing import Literal

from gradleak.core.errors import GradleakError

StopReason = Literal["completed", "budget-exhausted", "interrupted"]
# What can run out. Memory is watched from outside the process, so no attack ever sees that limit.
LimitName = Literal["time", "memory", "steps"]

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}


class Stopped(BaseException):  # no error, so that `except Exception` does not hold it up
    """Raised inside work whose budget is over, where it cannot hand back what it has.

    Whoever gave it the budget takes the best that the work has kept so far (`AttackContext.keep`).
    """


def parse_duration(text: str) -> float:
    """Seconds of a duration such as 90, 60s, 5m or 1.5h.

    >>> parse_duration("5m"), parse_duration("60s"), parse_duration("1.5h")
    (300.0, 60.0, 5400.0)
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smh]?)\s*", text)
    if not match or not 0 < float(match[1]) < float("inf"):
        raise GradleakError(f"{text!r} is not a duration; write 60s, 5m or 1.5h")
    return float(match[1]) * _UNITS[match[2]]


class Budget:
    """A limit on time, which starts to run on creation, and on steps, and a switch that stops the work from outside.

    Attacks call `tick` before every step of their main loops, ask `over` elsewhere, and then hand back the best they
    have.

    >>> Budget().over, Budget(seconds=0).over
    (False, True)
    >>> budget = Budget(steps=2)
    >>> [budget.tick() for _ in range(3)], budget.over, budget.limit
    ([False, False, True], True, 'steps')
    """

    def __init__(self, seconds: float | None = None, steps: int | None = None) -> None:
        self.seconds = seconds
        self.steps = steps
        self._start = time.monotonic()
        self._taken = 0
        self._refused = False
        self._interrupted_at: float | None = None
        self.stopped_by: LimitName | None = None
        """The limit that first ended something, be it only a part of the work."""

    @classmethod
    def of(cls, value: Budget | str | float | None) -> Budget:
        """A budget as given, of a duration such as "60s" or a number of seconds; None is no limit.

        >>> Budget.of("5m").seconds, Budget.of(90).seconds, Budget.of(None).seconds
        (300.0, 90.0, None)
        """
        if isinstance(value, Budget):
            return value
        seconds = parse_duration(value) if isinstance(value, str) else value
        if seconds is not None and not 0 <= seconds < math.inf:
            raise GradleakError(f"{value!r} is not a number of seconds")
        return cls(None if seconds is None else float(seconds))

    def interrupt(self) -> None:
        """Ask the running attack to stop at its next step."""
        if self._interrupted_at is None:
            self._interrupted_at = time.monotonic()

    @property
    def interrupted(self) -> bool:
        return self._interrupted_at is not None

    @property
    def late(self) -> float:
        """Seconds since the time ran out or the work was interrupted; 0 before that."""
        ended = [] if self._interrupted_at is None else [time.monotonic() - self._interrupted_at]
        if self.seconds is not None:
            ended.append(self.used - self.seconds)
        return max(0.0, *ended, 0.0)

    def check(self) -> None:
        """Raise `Stopped` if the time is over or the work was interrupted. Steps are counted by `tick`."""
        if self.late:
            self.over  # noqa: B018 - notes which limit it was
            raise Stopped

    @property
    def used(self) -> float:
        """Seconds since the budget began."""
        return time.monotonic() - self._start

    @property
    def left(self) -> float | None:
        """Seconds that are left; None if there is no limit on time."""
        return None if self.seconds is None else max(0.0, self.seconds - self.used)

    @property
    def over(self) -> bool:
        limit = self.limit
        if limit is not None:
            self._note(limit)
        return self.interrupted or limit is not None

    def _note(self, limit: LimitName) -> None:
        self.stopped_by = self.stopped_by or limit

    @property
    def limit(self) -> LimitName | None:
        """Which limit is reached. Steps run out when one more is asked for, so an attack may need exactly all."""
        if self.seconds is not None and self.used >= self.seconds:
            return "time"
        return "steps" if self._refused else None

    def tick(self) -> bool:
        """Count one step; True if the budget is over and the step must not be taken."""
        self._refused |= self.steps is not None and self._taken >= self.steps
        if self.over:
            return True
        self._taken += 1
        return False

    def part(self, share: float) -> Budget:
        """A budget of a share of the time and steps left, which ends when this one does."""
        steps = None if self.steps is None else math.ceil(share * (self.steps - self._taken))
        return _Part(self, None if self.left is None else share * self.left, steps)

    def before_closing(self) -> Budget:
        """A budget for the main work, which leaves some time for what comes after it: the control, scores."""
        left = self.left
        return self if left is None else self.part(1 - min(_RESERVED_SHARE, _closing_time(self) / max(left, 1e-9)))

    def closing(self) -> Budget:
        """A budget for the work after this one's end, should the main work have taken all. It ends a little later."""
        return _Closing(self)

    def limited(self, seconds: float | None, steps: int | None) -> Budget:
        """A budget of its own, counted from now, which ends when this one does."""
        return _Part(self, seconds, steps)

    def turn(self, seconds: float) -> Budget:
        """A budget that is interrupted after so many seconds, or when this one is over.

        Work does not see that end come, and so does not divide its time by it: what it finishes before is what it
        would have been without.

        >>> Budget().turn(60).left, Budget().turn(60).over, Budget().turn(0).reason
        (None, False, 'interrupted')
        """
        return _Turn(self, seconds)

    @property
    def reason(self) -> StopReason:
        """Why work that ends now has ended."""
        if self.interrupted:
            return "interrupted"
        return "budget-exhausted" if self.over else "completed"


# What closing may take: seconds, and a share of the whole time. The main work leaves at most so much of the rest.
_CLOSING_SECONDS, _CLOSING_SHARE = 1.5, 0.03
_RESERVED_SHARE = 0.2


def _closing_time(budget: Budget) -> float:
    return _CLOSING_SECONDS + _CLOSING_SHARE * (budget.seconds or 0.0)


class _Closing(Budget):
    def __init__(self, whole: Budget) -> None:
        super().__init__()
        self._whole = whole
        self._extra = _closing_time(whole)

    @property
    def left(self) -> float | None:
        before = self._whole.left
        if before is None and not self._whole.interrupted:
            return None
        return max(0.0, (before or 0.0) + self._extra - self._whole.late)

    @property
    def late(self) -> float:
        return max(0.0, self._whole.late - self._extra)

    @property
    def limit(self) -> LimitName | None:
        return "time" if self.late else None


class _Part(Budget):
    def __init__(self, whole: Budget, seconds: float | None, steps: int | None) -> None:
        super().__init__(seconds, steps)
        self._whole = whole

    @property
    def interrupted(self) -> bool:
        return self._whole.interrupted

    @property
    def left(self) -> float | None:
        both = [left for left in (super().left, self._whole.left) if left is not None]
        return min(both) if both else None

    @property
    def late(self) -> float:
        return max(super().late, self._whole.late)

    @property
    def limit(self) -> LimitName | None:
        return self._whole.limit or super().limit

    def _note(self, limit: LimitName) -> None:
        super()._note(limit)
        self._whole._note(limit)

    def tick(self) -> bool:
        return super().tick() or self._whole.tick()


class _Turn(_Part):
    def __init__(self, whole: Budget, seconds: float) -> None:
        super().__init__(whole, None, None)
        self._length = seconds

    @property
    def interrupted(self) -> bool:
        return super().interrupted or self.used >= self._length

    @property
    def late(self) -> float:
        return max(super().late, self.used - self._length)
