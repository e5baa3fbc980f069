"""Names beside points, placed so that they cover neither points nor one another."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

# Of a 13-pixel sans-serif: a little more than the mean width of a bold character, and the height of a line.
CHARACTER, LINE = 7.8, 17.0
RADIUS = 8.0


@dataclass(frozen=True)
class Box:
    left: float
    top: float
    right: float
    bottom: float

    @classmethod
    def of_text(cls, x: float, baseline: float, text: str) -> Box:
        """The place of a text that starts at x."""
        return cls(x, baseline - LINE + 4, x + CHARACTER * len(text), baseline + 4)

    @property
    def width(self) -> float:
        return self.right - self.left

    @property
    def height(self) -> float:
        return self.bottom - self.top

    @property
    def middle(self) -> tuple[float, float]:
        return (self.left + self.right) / 2, (self.top + self.bottom) / 2

    def overlap(self, other: Box) -> float:
        """The area both cover."""
        wide = min(self.right, other.right) - max(self.left, other.left)
        high = min(self.bottom, other.bottom) - max(self.top, other.top)
        return max(0.0, wide) * max(0.0, high)

    def nearest(self, x: float, y: float) -> tuple[float, float]:
        """The point of the box that is nearest to a place."""
        return min(max(x, self.left), self.right), min(max(y, self.top), self.bottom)


def place_labels(
    points: Sequence[tuple[float, float]], texts: Sequence[str], area: Box, taken: Sequence[Box] = ()
) -> list[Box]:
    """A box for every text, near its point and inside the area; where all places are taken, the least covered one.

    >>> first, second = place_labels([(50, 50), (52, 50)], ["one", "two"], Box(0, 0, 100, 100))
    >>> first.overlap(second)
    0.0
    """
    dots = [Box(x - RADIUS, y - RADIUS, x + RADIUS, y + RADIUS) for x, y in points]
    placed: list[Box] = []
    for (x, y), text in zip(points, texts, strict=True):
        others = [*dots, *placed, *taken]
        tried = [(sum(box.overlap(other) for other in others), box) for box in _around(x, y, text, area)]
        # The first free place is the nearest one, for the places come in that order.
        placed.append(next((box for covered, box in tried if covered == 0), min(tried, key=lambda t: t[0])[1]))
    return placed


def _around(x: float, y: float, text: str, area: Box) -> Iterator[Box]:
    """Boxes around a place, near ones first, pushed back into the area."""
    width = CHARACTER * len(text)
    for distance in (10, 20, 34, 50, 70, 95, 125, 160):
        for step in (0, 8, 4, 12, 2, 14, 6, 10, 1, 15, 7, 9, 3, 13, 5, 11):  # right, left, below, above, between
            angle = math.tau * step / 16
            cx = x + math.cos(angle) * (distance + width / 2)
            cy = y + math.sin(angle) * (distance + LINE / 2)
            left = min(max(cx - width / 2, area.left + 2), max(area.right - width - 2, area.left + 2))
            top = min(max(cy - LINE / 2, area.top + 2), area.bottom - LINE - 2)
            yield Box(left, top, left + width, top + LINE)
