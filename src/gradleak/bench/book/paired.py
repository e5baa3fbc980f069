"""Differences between two lines of the papers' tables, trial by trial: both faced the same batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradleak.bench.provenance import ABOUT
from gradleak.scoring.interval import Interval, student
from gradleak.scoring.metrics import label_of

# What has to be alike, so that trial i of one line had the batch of trial i of the other.
ALIKE = ("data", "batch_size", "seed")


def differences(files: Mapping[str, Any], pairs: Mapping[str, list[str]]) -> str:
    """For every metric of a claim: its name, the mean difference with its interval, and over how many trials.

    `pairs` has two lines for each metric, written "lamp-table1: CoLA TAG"; the second is taken from the first.
    """
    parts = []
    for metric, (first, second) in pairs.items():
        gap, count = difference(_line(files, first), _line(files, second), metric)
        names = _told_apart(files, first, second)
        parts.append(
            f"{label_of(metric)} of {names[0]} less {names[1]}, paired: "
            f"{gap.mean:+.0f} [{gap.low:+.0f}, {gap.high:+.0f}] of {count}"
        )
    return "; ".join(parts)


def difference(first: Mapping[str, Any], second: Mapping[str, Any], metric: str) -> tuple[Interval, int]:
    """The mean of the first line's scores less the second's, over the batches that both have."""
    for name in ALIKE:
        if first["settings"][name] != second["settings"][name]:
            raise ValueError(f"{first['name']} and {second['name']} differ in {name}: their trials are not pairs")
    gaps = [a - b for a, b in zip(first["scores"][metric], second["scores"][metric], strict=False)]
    return student(gaps, -100, 100), len(gaps)


def _told_apart(files: Mapping[str, Any], *lines: str) -> list[str]:
    """The lines' names, with their models where these differ."""
    models = [files[_place(line)][ABOUT]["model"] for line in lines]
    names = [line.partition(": ")[2] for line in lines]
    if len(set(models)) == 1:
        return names
    return [f"{name} ({model})" for name, model in zip(names, models, strict=True)]


def _place(named: str) -> str:
    return f"results/{named.partition(': ')[0]}.json"


def _line(files: Mapping[str, Any], named: str) -> Mapping[str, Any]:
    file, _, name = named.partition(": ")
    cells = files[_place(named)]["cells"]
    found = [cell for cell in cells if cell["name"] == name]
    if len(found) != 1:
        raise ValueError(f"{file} has no line {name!r}; lines: {', '.join(cell['name'] for cell in cells)}")
    return dict(found[0])
