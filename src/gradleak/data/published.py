"""Which rows published experiments took, and in which order, so that ours can take the same.

The code of LAMP shuffles all rows by one seed of numpy's and tests on the first; GRAB's 64 sentences are the first
64. The code of DAGER leaves the first 1,000 out and takes 100 batches of all lengths from the rest. Numpy keeps what
`RandomState` draws as it is forever, so the rows are theirs if the data is: the train split, row by row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from gradleak.core.errors import GradleakError

if TYPE_CHECKING:
    import numpy as np

Published = Literal["lamp-test", "dager-val"]

SEED = 101
# Batches of an experiment of DAGER's: lengths are spread over all of them, so another number would change every one.
INPUTS = 100
# Rows at the beginning that are for tests.
TESTED = 1000


def published_order(rule: Published, texts: Sequence[str], batch_size: int) -> list[int]:
    """The numbers of the rows, first batch first.

    >>> published_order("lamp-test", ["a"] * 8551, 1)[:3]
    [2310, 5604, 5827]
    """
    import numpy as np  # the command line knows the rules without it

    draws = np.random.RandomState(SEED)
    order = list(range(len(texts)))
    draws.shuffle(order)
    return order if rule == "lamp-test" else _spread(order[TESTED:], texts, INPUTS * batch_size, draws)


def _spread(order: list[int], texts: Sequence[str], wanted: int, draws: np.random.RandomState) -> list[int]:
    """One row of each of `wanted` equal parts, from the shortest texts to the longest, in any order.

    What does not fill a part is left out, at the long end: 6,400 of 7,551 rows are the shortest ones. Where there are
    fewer rows than wanted, all are taken, and then the shortest again.
    """
    if not order:
        raise GradleakError(f"dager-val leaves out {TESTED} rows, and the data has no more")
    chosen: list[int] = []
    while len(chosen) < wanted:
        sorted_rows = sorted(order, key=lambda row: len(texts[row]))
        part = max(len(order) // wanted, 1)
        count = min(len(order), wanted - len(chosen))
        chosen += [sorted_rows[number * part + draws.randint(part)] for number in range(count)]
        draws.shuffle(order)
    draws.shuffle(chosen)
    return chosen
