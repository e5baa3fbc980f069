"""A line of a table of the book, and what several readers of files need to make one."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradleak.bench.provenance import ABOUT
from gradleak.scoring.interval import mean_interval

# Names of data files as people know the corpora.
CORPORA = {
    "cola_train.tsv": "CoLA",
    "enron_sentences.json": "Enron",
    "enron.txt": "Enron",
    "wikitext103_sentences.txt": "WikiText-103",
    "imdb_train.jsonl": "IMDb",
    "rt_polarity_neg.txt, rt_polarity_pos.txt": "Rotten Tomatoes",
    "sst2_train.tsv": "SST-2",
    "cola": "CoLA", "sst2": "SST-2", "sst2_sentences": "SST-2, sentences", "rotten_tomatoes": "Rotten Tomatoes",
    "rotten_tomatoes_train": "Rotten Tomatoes", "enron": "Enron",
    "wikitext103": "WikiText-103", "wikitext2_test": "WikiText-2",
}  # fmt: skip


@dataclass(frozen=True)
class Line:
    """One setting: on which page, from which file, and its columns in order."""

    page: str
    file: str
    values: Mapping[str, str]


@dataclass(frozen=True)
class Kept:
    """A file of measurements."""

    file: str
    content: Mapping[str, Any]

    @property
    def about(self) -> Mapping[str, Any]:
        return dict(self.content[ABOUT])

    @property
    def cells(self) -> Any:
        return self.content["cells"]

    @property
    def model(self) -> str:
        return str(self.about["model"])

    @property
    def data(self) -> str:
        return str(self.about["data"])

    @property
    def command(self) -> str:
        return str(self.about["command"])


def mean(values: Sequence[float], floor: float = 0.0, ceiling: float = 100.0, form: str = "") -> str:
    """The mean over batches with its interval; one batch says nothing of the spread.

    >>> mean([100.0, 50.0, 100.0]), mean([40.0])
    ('83 [12, 100]', '40 (one)')
    """
    if len(values) == 1:
        return f"{format(values[0], form or '.0f')} (one)"
    return format(mean_interval(values, floor, ceiling), form)


def seconds(cells: Sequence[Mapping[str, Any]], name: str = "seconds") -> str:
    """The median, and the longest.

    >>> seconds([{"seconds": 2.0}, {"seconds": 3.0}, {"seconds": 31.0}])
    '3 (31)'
    """
    spent = [cell[name] for cell in cells]
    return f"{statistics.median(spent):.0f} ({max(spent):.0f})"


def certified(cells: Sequence[Mapping[str, Any]]) -> str:
    """How many sentences have a certificate, and how many of these are wrong, which the oldest files do not say."""
    known = all("certified_wrong" in cell for cell in cells)
    wrong = str(sum(cell["certified_wrong"] for cell in cells)) if known else "not recorded"
    return f"{sum(cell['certified'] for cell in cells)}, {wrong}"


def corpus(data: str) -> str:
    """A corpus as people know it, of the name of its file or of a recipe."""
    return CORPORA.get(data, data)
