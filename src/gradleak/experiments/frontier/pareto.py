"""The Pareto front: settings that no other one beats."""

from __future__ import annotations

from collections.abc import Sequence


def dominates(a: Sequence[float], b: Sequence[float]) -> bool:
    """Whether `a` is nowhere worse than `b` and somewhere better; smaller is better."""
    return all(x <= y for x, y in zip(a, b, strict=True)) and any(x < y for x, y in zip(a, b, strict=True))


def front(points: Sequence[Sequence[float]]) -> list[int]:
    """The numbers of the points that no other dominates; equal points stay together.

    >>> front([(90, 10), (20, 12), (50, 30), (20, 12)])
    [0, 1, 3]
    """
    return [i for i, point in enumerate(points) if not any(dominates(other, point) for other in points)]
