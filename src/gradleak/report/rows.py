"""Every sentence of every audit as one flat line: what the page shows, filters and sorts, and what is exported."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gradleak.audits.results import Results, Trial
from gradleak.core.errors import GradleakError
from gradleak.core.files import write_text
from gradleak.report.highlight import highlight
from gradleak.report.wording import METRIC_NAMES
from gradleak.scoring.score import Pair
from gradleak.verdict.attempts import Cell, cells_of

_BATCH = ("best_rougeL", "sentence_recall", "sentence_precision")
SCORES = tuple(name for name in METRIC_NAMES if name not in _BATCH)
COLUMNS = (
    "scenario", "defense", "attack", "seed", "trial", "status", "truth", "recovered", *SCORES, "confidence",
    "certified", "stage", "names_found", "names", "numbers_found", "numbers", "seconds",
)  # fmt: skip

# A spreadsheet takes a text that begins with one of these for a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def sentence_rows(results: Sequence[Results]) -> list[dict[str, Any]]:
    """A line a true sentence, in the order of the audits, with the keys of `COLUMNS`."""
    return [
        _row(cell, trial, pair) for cell in cells_of(results) for trial in cell.results.trials for pair in trial.pairs
    ]


def marks(truth: str, recovered: str) -> list[tuple[str, str]]:
    """The recovery in pieces: `p` for a pair of neighbours that stands in the truth, `w` for a single word of it.

    >>> marks("the cat sat down", "the cat up, down")
    [('the cat', 'p'), (' up, ', ''), ('down', 'w')]
    """
    merged: list[tuple[str, str]] = []
    pieces = [(piece, {"pair": "p", "word": "w", "none": ""}[mark]) for piece, mark in highlight(truth, recovered)]
    for number, (piece, mark) in enumerate(pieces):
        after = pieces[number + 1][1] if number + 1 < len(pieces) else ""
        if piece.isspace() and after == "p" and merged and merged[-1][1] == "p":  # the gap belongs to the pair
            mark = after
        if merged and merged[-1][1] == mark:
            merged[-1] = (merged[-1][0] + piece, mark)
        else:
            merged.append((piece, mark))
    return merged


def as_json(rows: Sequence[dict[str, Any]]) -> str:
    return json.dumps(list(rows), ensure_ascii=False, indent=1) + "\n"


def as_csv(rows: Sequence[dict[str, Any]]) -> str:
    """Comma-separated, with a line of headings; texts that a spreadsheet would run get a quotation mark."""
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\r\n")
    writer.writeheader()
    writer.writerows({name: _harmless(row[name]) for name in COLUMNS} for row in rows)
    return out.getvalue()


def write_rows(results: Sequence[Results], out: Path) -> Path:
    """Write all lines as the file's name asks, readable by its owner only."""
    forms = {".csv": as_csv, ".json": as_json}
    if out.suffix.lower() not in forms:
        raise GradleakError(f"{out.name}: write to a file that ends in .csv or .json")
    return write_text(out, forms[out.suffix.lower()](sentence_rows(results)))


def _row(cell: Cell, trial: Trial, pair: Pair) -> dict[str, Any]:
    pieces = pair.pieces
    counts = (None,) * 4 if pieces is None else (
        pieces.names.found, pieces.names.total, pieces.numbers.found, pieces.numbers.total
    )  # fmt: skip
    values = (
        cell.scenario, cell.defense, cell.attack, cell.results.scenario.seed, trial.index + 1, trial.status,
        pair.truth, pair.reconstruction, *(_rounded(pair.scores.get(name)) for name in SCORES),
        round(pair.confidence, 4), pair.certified, pair.stage, *counts, round(trial.seconds, 2),
    )  # fmt: skip
    return dict(zip(COLUMNS, values, strict=True))


def _rounded(score: float | None) -> float | None:
    return None if score is None else round(score, 2)


def _harmless(value: object) -> object:
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value
