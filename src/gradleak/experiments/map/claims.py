"""What the paper on partial gradients observed, tested on a map: the same trials in every cell, compared in pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from gradleak.experiments.map.grid import WHOLE
from gradleak.experiments.map.result import LeakMap, MapCell
from gradleak.scoring.interval import Interval, student

# All layers together count as close to the whole update if they give at most so many points less.
CLOSE = 10.0

Holds = Literal["holds", "does not hold", "open"]


@dataclass(frozen=True)
class Claim:
    """A statement, the paired difference that decides it, and whether that is clear."""

    statement: str
    measured: str
    difference: Interval
    holds: Holds


def claims(result: LeakMap) -> list[Claim]:
    """The paper's four observations, which are of text, as far as the map has the cells for them."""
    if result.metric != "rougeL":
        return []
    tested = [_all_layers(result), _single_layers(result), _middle(result), _query_and_key(result)]
    return [claim for claim in tested if claim is not None]


def _all_layers(result: LeakMap) -> Claim | None:
    layers = result.all_layers
    pairs = [] if layers is None else _paired(layers.values, result.all.values)
    return _claim("all layers give nearly as much as everything", "all layers − everything", pairs, -CLOSE)


def _single_layers(result: LeakMap) -> Claim | None:
    layers = [result.at(number, WHOLE) for number in range(1, result.layers + 1)]
    measured = [cell for cell in layers if cell.values]
    if not measured or len(measured) < len(layers):
        return None
    weakest = min(measured, key=lambda cell: sum(cell.values))
    pairs = _paired(weakest.values, weakest.guesses)
    return _claim("every single layer leaks", f"layer {weakest.layer}, the weakest, − guessing", pairs)


def _middle(result: LeakMap) -> Claim | None:
    third = result.layers // 3
    if not third:
        return None
    inner = range(third + 1, result.layers - third + 1)
    outer = [number for number in range(1, result.layers + 1) if number not in inner]
    names = f"layers {inner.start} to {inner.stop - 1} − the others"
    pairs = _paired(*(_mean_of([result.at(n, c) for n in some for c in result.columns]) for some in (inner, outer)))
    return _claim("middle layers leak most", f"{names}, mean of all columns", pairs)


def _query_and_key(result: LeakMap) -> Claim | None:
    if not {"query", "key", "value"} <= set(result.columns):
        return None
    numbers = range(1, result.layers + 1)
    asking = _mean_of([result.at(number, role) for number in numbers for role in ("query", "key")])
    values = _mean_of([result.at(number, "value") for number in numbers])
    return _claim(
        "query and key leak more than value", "query and key − value, mean of all layers", _paired(asking, values)
    )


def _claim(statement: str, measured: str, pairs: Sequence[float], least: float = 0.0) -> Claim | None:
    """The difference must be above `least`: it holds, or not, where the whole interval says so."""
    if len(pairs) < 2:
        return None
    difference = student(pairs, -100, 100)
    holds: Holds = "holds" if difference.low > least else "does not hold" if difference.high < least else "open"
    return Claim(statement, measured, difference, holds)


def _mean_of(cells: Sequence[MapCell]) -> list[float]:
    """The mean of some cells, trial by trial; nothing if one is not measured."""
    if not all(cell.values for cell in cells):
        return []
    return [sum(each) / len(cells) for each in zip(*(cell.values for cell in cells), strict=True)]


def _paired(first: Sequence[float], second: Sequence[float]) -> list[float]:
    return [a - b for a, b in zip(first, second, strict=True)] if first and second else []
