"""Ways to write a number as a sum of so many numbers, best first.

A batch of sixteen has too many to list. Where what is minimised is a sum of convex terms, a term per part, a path
of single units moved leads from any composition to the best along which the cost never rises, so a search that starts
at the best meets all others in order.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator

Composition = tuple[int, ...]


def all_compositions(total: int, parts: int) -> Iterator[Composition]:
    """All ways to write a total as a sum of so many numbers, in order.

    >>> list(all_compositions(2, 2))
    [(0, 2), (1, 1), (2, 0)]
    """
    for bars in itertools.combinations(range(total + parts - 1), parts - 1):
        edges = (-1, *bars, total + parts - 1)
        yield tuple(edges[i + 1] - edges[i] - 1 for i in range(parts))


def cheapest_compositions(
    best: Composition, cost: Callable[[Composition], float], *, least: int, most: int, unordered: bool
) -> Iterator[Composition]:
    """All compositions of the same total with parts within limits, cheapest first; of equals, larger parts first.

    `best` must be among the cheapest. If `unordered`, the order of parts does not matter, and they come falling.

    >>> squares = lambda parts: sum(n * n for n in parts)
    >>> list(cheapest_compositions((2, 2, 1), squares, least=1, most=4, unordered=True))
    [(2, 2, 1), (3, 1, 1)]
    """
    queue = [(cost(best), tuple(-n for n in best), best)]
    met = {best}
    while queue:
        *_, cheapest = heapq.heappop(queue)
        yield cheapest
        for moved in _neighbours(cheapest, least, most):
            neighbour = tuple(sorted(moved, reverse=True)) if unordered else tuple(moved)
            if neighbour not in met:
                met.add(neighbour)
                heapq.heappush(queue, (cost(neighbour), tuple(-n for n in neighbour), neighbour))


def _neighbours(composition: Composition, least: int, most: int) -> Iterator[list[int]]:
    """The compositions in which a single unit has moved from one part to another."""
    givers = [i for i, n in enumerate(composition) if n > least]
    takers = [i for i, n in enumerate(composition) if n < most]
    for giver, taker in itertools.product(givers, takers):
        if giver != taker:
            moved = list(composition)
            moved[giver] -= 1
            moved[taker] += 1
            yield moved
