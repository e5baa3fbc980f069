"""Which reconstruction belongs to which true sentence of a batch: the pairing with the best total."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy  # its parts are loaded when they are first used


def best_assignment(gains: Sequence[Sequence[float]]) -> list[int | None]:
    """For every row the column that belongs to it, so that the sum of gains is largest; None if none is left.

    >>> best_assignment([[1, 5], [9, 6]])
    [1, 0]
    >>> best_assignment([[1.0], [2.0]])
    [None, 0]
    """
    chosen: list[int | None] = [None] * len(gains)
    table = np.array(gains, dtype=float).reshape(len(gains), -1)
    for row, column in zip(*scipy.optimize.linear_sum_assignment(table, maximize=True), strict=True):
        chosen[row] = int(column)
    return chosen
