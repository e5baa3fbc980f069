"""Differences between two lines of the papers' tables, trial by trial: both faced the same batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from statistics import mean
from typing import Any

from gradleak.bench.provenance import ABOUT
from gradleak.scoring.interval import Interval, student
from gradleak.scoring.metrics import label_of

# What has to be alike, so that trial i of one line had the batch of trial i of the other.
ALIKE = ("data", "batch_size", "seed")


def differences(files: Mapping[str, Any], pairs: Mapping[str, list[str]]) -> str:
    """For every metric of a claim: its name, the mean difference with its interval, and over how many trials.

    `pairs` has two lines for each metric, written "lamp-table1: CoLA TAG"; the second is taken from the first. A name
    may stand for several lines, by `*` or by `|` between them, and then for their mean of every trial.
    """
    parts = []
    for metric, (first, second) in pairs.items():
        gap, count = difference(_lines(files, first), _lines(files, second), metric)
        names = _told_apart(files, first, second)
        parts.append(
            f"{label_of(metric)} of {names[0]} less {names[1]}, paired: "
            f"{gap.mean:+.0f} [{gap.low:+.0f}, {gap.high:+.0f}] of {count}"
        )
    return "; ".join(parts)


def difference(
    first: Sequence[Mapping[str, Any]], second: Sequence[Mapping[str, Any]], metric: str
) -> tuple[Interval, int]:
    """The mean of the first lines' scores less the second's, over the batches that all of them have."""
    one, *others = [*first, *second]
    for other in others:
        for name in ALIKE:
            if one["settings"][name] != other["settings"][name]:
                raise ValueError(f"{one['name']} and {other['name']} differ in {name}: their trials are not pairs")
    gaps = [a - b for a, b in zip(_means(first, metric), _means(second, metric), strict=False)]
    return student(gaps, -100, 100), len(gaps)


def _means(lines: Sequence[Mapping[str, Any]], metric: str) -> list[float]:
    return [mean(scores) for scores in zip(*(line["scores"][metric] for line in lines), strict=False)]


def _told_apart(files: Mapping[str, Any], *lines: str) -> list[str]:
    """The lines' names, with their models where these differ."""
    models = [files[_place(line)][ABOUT]["model"] for line in lines]
    names = [line.partition(": ")[2].replace("|", " and ") for line in lines]
    if len(set(models)) == 1:
        return names
    return [f"{name} ({model})" for name, model in zip(names, models, strict=True)]


def _place(named: str) -> str:
    return f"results/{named.partition(': ')[0]}.json"


def _lines(files: Mapping[str, Any], named: str) -> list[Mapping[str, Any]]:
    file, _, names = named.partition(": ")
    cells = files[_place(named)]["cells"]
    found = []
    for name in names.split("|"):
        own = [cell for cell in cells if fnmatchcase(cell["name"], name)]
        if not own or (len(own) > 1 and "*" not in name):
            raise ValueError(f"{file} has no line {name!r}; lines: {', '.join(cell['name'] for cell in cells)}")
        found += own
    return found
