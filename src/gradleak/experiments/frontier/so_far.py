"""What a frontier that is not measured to its end shows so far: a line a setting, with intervals and what is missing.

Only finished trials and finished seeds are in it. It is no advice: what is not told apart yet is said to be so.
"""

from __future__ import annotations

from collections.abc import Sequence

from gradleak.defenses.chains import NONE
from gradleak.experiments.frontier.advice import amount, learned, named, spread
from gradleak.experiments.frontier.points import Point
from gradleak.experiments.utility import Metric
from gradleak.scoring.interval import Interval


def so_far(points: Sequence[Point], metric: Metric, floor: float | None, tolerance: float) -> list[str]:
    """A line for every setting that is not finished, and for all of them while the undefended one is not."""
    plain = next((point for point in points if point.label == NONE), None)
    every = plain is None or plain.status == "unfinished"
    lines = []
    for point in points:
        if every or point.status == "unfinished":
            parts = [
                _leak(point, plain),
                _worth(point, metric, floor) if point is plain else _cost(point, metric, tolerance),
            ]
            missing = [f"still missing: {', '.join(point.missing)}"] if point.missing else []
            lines.append(f"{point.label}: {'; '.join([*parts, *missing])}.")
    return lines


def _leak(point: Point, plain: Point | None) -> str:
    """What was read, beside the undefended leak, or beside guessing where there is none to compare with."""
    if point.score is None:
        return "no attack has finished a trial"
    read = f"{point.best} reads {point.score.label} {spread(point.score.leak)}"
    if point is plain or plain is None or plain.score is None:
        control = point.score.control
        return f"{read}, {_beside(point.score.leak, control.low, control.high, 'guessing')} ({spread(control)})"
    scores = [score.leak for score in point.attacks.values() if score is not None]
    most = Interval(
        mean=point.score.leak.mean, low=max(leak.low for leak in scores), high=max(leak.high for leak in scores)
    )
    return f"{read}, {_beside(most, plain.score.leak.low, plain.score.leak.high, NONE)} ({spread(plain.score.leak)})"


def _beside(value: Interval, low: float, high: float, what: str) -> str:
    if value.high < low:
        return f"clearly below {what}"
    return f"clearly above {what}" if value.low > high else f"not told apart from {what} yet"


def _worth(point: Point, metric: Metric, floor: float | None) -> str:
    """What the undefended training reached."""
    if point.utility is None:
        return "no training is finished"
    reached = f"{named(metric)} {spread(point.utility)}"
    if floor is None:
        return reached
    clear = "clearly better than" if learned(point.utility, metric, floor) else "not told apart yet from"
    return f"{reached}, {clear} no training ({floor:.1f})"


def _cost(point: Point, metric: Metric, tolerance: float) -> str:
    if point.cost is None:
        return "what it costs is not measured yet"
    price = f"it costs {amount(point.cost.mean, metric)} [{point.cost.low:.1f}, {point.cost.high:.1f}]"
    if point.cost.high <= tolerance:
        return f"{price}, clearly within the {tolerance:.1f} allowed"
    clear = "clearly more than" if point.cost.low > tolerance else "not told apart yet from"
    return f"{price}, {clear} the {tolerance:.1f} allowed"
