"""The lines of several audits together: what the page shows, filters and sorts, and what is exported."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path

from gradleak.audits.results import Results
from gradleak.audits.rows import Row, pair_rows
from gradleak.core.errors import GradleakError
from gradleak.core.files import write_text
from gradleak.report.highlight import highlight
from gradleak.verdict.attempts import cells_of

# A spreadsheet takes a text that begins with one of these for a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def named_rows(results: Sequence[Results]) -> list[Row]:
    """A line for every true sentence or image, in the order of the audits, under the names that tell audits apart.

    All lines have the same keys, in the same order; what one kind of audit does not have is None.
    """
    rows = [
        {"scenario": cell.scenario, "defense": cell.defense, "attack": cell.attack, **row}
        for cell in cells_of(results)
        for row in pair_rows(cell.results)
    ]
    columns = dict.fromkeys(name for row in rows for name in row)
    return [{name: row.get(name) for name in columns} for row in rows]


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


def as_json(rows: Sequence[Row]) -> str:
    return json.dumps(list(rows), ensure_ascii=False, indent=1) + "\n"


def as_csv(rows: Sequence[Row]) -> str:
    """Comma-separated, with a line of headings; texts that a spreadsheet would run get a quotation mark."""
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]) if rows else [], lineterminator="\r\n")
    writer.writeheader()
    writer.writerows({name: _harmless(value) for name, value in row.items()} for row in rows)
    return out.getvalue()


def write_rows(results: Sequence[Results], out: Path) -> Path:
    """Write all lines as the file's name asks, readable by its owner only."""
    forms = {".csv": as_csv, ".json": as_json}
    if out.suffix.lower() not in forms:
        raise GradleakError(f"{out.name}: write to a file that ends in .csv or .json")
    return write_text(out, forms[out.suffix.lower()](named_rows(results)))


def _harmless(value: object) -> object:
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value
