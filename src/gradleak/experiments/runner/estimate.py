"""What an experiment will cost, from cells that were measured."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gradleak.core.text import duration
from gradleak.experiments.runner.cell import Cell, Limits


@dataclass(frozen=True)
class Estimate:
    """Seconds of work, how many cells it rests on, and how many cells nothing is known about."""

    seconds: float
    measured: int
    unknown: int


def estimate(
    todo: Sequence[Cell],
    finished: Iterable[tuple[Cell, float]],
    limits: Limits,
    kept: Mapping[str, int] | None = None,
) -> Estimate:
    """The work left, each cell by the mean of the finished ones most like it.

    Most like it: the same model, attack and batch size; failing that the same model and attack, the time taken to
    grow with the sentences of a batch; failing that nothing is claimed. No cell counts for more than its time limit,
    and trials that are `kept` of it cost nothing.
    """
    alike: dict[tuple[object, ...], list[float]] = defaultdict(list)
    measured = 0
    for cell, seconds in finished:
        measured += 1
        repetitions, size = cell.job.size
        alike[_kind(cell), size].append(seconds / repetitions)
        alike[_kind(cell), None].append(seconds / repetitions / size)
    total, unknown = 0.0, 0
    for cell in todo:
        repetitions, size = cell.job.size
        repetitions -= (kept or {}).get(cell.id, 0)
        if near := alike.get((_kind(cell), size)):
            expected = statistics.fmean(near) * repetitions
        elif near := alike.get((_kind(cell), None)):
            expected = statistics.fmean(near) * repetitions * size
        else:
            unknown += 1
            continue
        total += expected if limits.seconds is None else min(expected, limits.seconds)
    return Estimate(total, measured, unknown)


def in_words(expected: Estimate, todo: int, workers: int, limits: Limits) -> str:
    """
    >>> in_words(Estimate(600.0, 4, 2), 12, 2, Limits(time="5m"))
    'about 5m on 2 workers for 10 cells, going by 4 finished ones; 2 more like none of them, at most 5m each'
    """
    known = todo - expected.unknown
    parts = []
    if known:
        parts.append(
            f"about {duration(expected.seconds / workers)} on {workers} workers for {known} cells, going by "
            f"{expected.measured} finished ones"
        )
    if expected.unknown:
        most = "with no time limit" if limits.time is None else f"at most {limits.time} each"
        parts.append(
            f"{expected.unknown} more like none of them, {most}" if known else f"nothing measured yet; {most}"
        )
    return "; ".join(parts) or "nothing left to do"


def _kind(cell: Cell) -> tuple[str, str]:
    return cell.hashes.model, cell.job.family
