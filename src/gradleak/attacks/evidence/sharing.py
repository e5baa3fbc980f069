"""Ways to share a number out, best first, without listing them all: a batch of sixteen has too many.

What is minimised is a sum of convex terms, one a part. Then from any sharing a path of single units moved leads to
the best one along which the cost never rises, so a search that starts there meets all others in order.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator

Sharing = tuple[int, ...]


def sharings(
    best: Sharing, cost: Callable[[Sharing], float], *, least: int, most: int, alike: bool
) -> Iterator[Sharing]:
    """All sharings of the same total with parts between two limits, cheapest first; of equals, larger parts first.

    `best` must be a cheapest one. Where parts are `alike` their order does not matter, and each sharing falls.

    >>> list(sharings((2, 2, 1), lambda parts: sum(n * n for n in parts), least=1, most=4, alike=True))
    [(2, 2, 1), (3, 1, 1)]
    """
    queue = [(cost(best), tuple(-n for n in best), best)]
    met = {best}
    while queue:
        *_, present = heapq.heappop(queue)
        yield present
        for other in _one_moved(present, least, most):
            found = tuple(sorted(other, reverse=True)) if alike else tuple(other)
            if found not in met:
                met.add(found)
                heapq.heappush(queue, (cost(found), tuple(-n for n in found), found))


def _one_moved(present: Sharing, least: int, most: int) -> Iterator[list[int]]:
    givers = [i for i, n in enumerate(present) if n > least]
    takers = [i for i, n in enumerate(present) if n < most]
    for giver, taker in itertools.product(givers, takers):
        if giver != taker:
            other = list(present)
            other[giver] -= 1
            other[taker] += 1
            yield other
