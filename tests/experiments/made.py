"""Invented points: what attacks read under a setting, and what it costs."""

from gradleak.experiments.frontier.points import AttackScore, Point
from gradleak.scoring.interval import Interval

GUESS = (8, 6, 10)
CHEAP, DEAR, VAGUE = (0.5, 0.0, 1.0), (9.0, 7.0, 11.0), (1.0, -2.0, 4.0)


def interval(values):
    return Interval(mean=values[0], low=values[1], high=values[2])


def point(label, *leaks, cost=CHEAP, utility=(85, 84, 86), status="completed", control=GUESS):
    attacks = {
        f"attack{i}": None if leak is None else AttackScore(leak=interval(leak), control=interval(control), trials=9)
        for i, leak in enumerate(leaks)
    }
    return Point(
        label=label, defenses=[] if label == "none" else [label], attacks=attacks, utility=interval(utility),
        cost=interval(cost), status=status,
    )  # fmt: skip


NONE = point("none", (90, 85, 95), cost=(0, 0, 0))
HIDDEN, LOWERED = (9, 5, 14), (40, 30, 50)
UNCHANGED, UNCLEAR = (88, 80, 96), (50, 5, 90)
