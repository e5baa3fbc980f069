"""The table of a sweep: one line a cell, sorted, and the same bytes whenever the cells are the same.

What differs from run to run (times, memory, machines) stays in the cells.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict
from rich.console import Console
from rich.table import Table

from gradleak.audits.spec import AuditConfig
from gradleak.core.budget import LimitName
from gradleak.core.files import write_text
from gradleak.defenses.chains import label
from gradleak.experiments.frontier.config import AttackSpec
from gradleak.experiments.kept import Cells
from gradleak.experiments.runner.cell import Cell, Status
from gradleak.experiments.runner.store import CELLS
from gradleak.scoring.interval import Interval
from gradleak.scoring.metrics import metric_names

CSV_FILE, JSON_FILE = "table.csv", "table.json"
NOT_RUN = "not run"
# Digits kept: enough for every use, and few enough that rounding noise of the last bits does not show.
DIGITS = 6

Line = dict[str, Any]


class _Model(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class _Scores(_Model):
    summary: dict[str, Interval]
    control: dict[str, Interval]


class _Ended(_Model):
    """The part of a cell file that the table shows."""

    status: Status
    limit: LimitName | None
    error: str | None
    results: _Scores | None


def lines(cells: Sequence[Cell], folder: Path) -> list[Line]:
    """A line for every cell of a plan, finished or not, sorted by what it is."""
    kept = Cells(folder / CELLS)
    found = [_line(cell, kept.read(cell.id, _Ended)) for cell in cells]
    return sorted(found, key=lambda line: [(value is not None, value) for value in list(line.values())[:_SETTINGS]])


def _line(cell: Cell, end: _Ended | None) -> Line:
    line: Line = {**_settings(cell.settings), "cell": cell.id}
    assert len(line) == _SETTINGS
    line["status"] = NOT_RUN if end is None else end.status
    line["limit"] = None if end is None else end.limit
    scores = end.results if end is not None and end.results is not None else _Scores(summary={}, control={})
    for metric in metric_names("text"):
        for kind, intervals in (("", scores.summary), ("control_", scores.control)):
            interval = intervals.get(metric)
            for part in ("mean", "low", "high"):
                value = None if interval is None else round(getattr(interval, part), DIGITS)
                line[f"{kind}{metric}_{part}"] = value
    line["error"] = None if end is None else end.error
    return line


# How many of a line's first columns say what the cell is.
_SETTINGS = 15


def _settings(audit: AuditConfig) -> Line:
    return {
        "model": audit.model,
        "task": audit.task,
        "num_labels": audit.num_labels,
        "data": audit.data,
        "batch_size": audit.batch_size,
        "client": audit.client,
        "defenses": label(audit.defenses),
        "observe": audit.observe,
        "attack": AttackSpec(name=audit.attack, options=dict(sorted(audit.options.items()))).label,
        "known": ",".join(audit.known),
        "max_tokens": audit.max_tokens,
        "window": audit.window,
        "trials": audit.trials,
        "seed": audit.seed,
    }


def write_table(found: Sequence[Line], folder: Path) -> tuple[Path, Path]:
    """Write table.csv and table.json."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(found[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(found)
    rows = ",\n".join(json.dumps(line, ensure_ascii=False) for line in found)
    return write_text(folder / CSV_FILE, text.getvalue()), write_text(folder / JSON_FILE, f"[\n{rows}\n]\n")


def print_table(found: Sequence[Line], console: Console, limit: int = 40) -> None:
    """The columns in which cells differ, with ROUGE-L beside its control."""
    names = list(found[0])[: _SETTINGS - 1]
    differing = [name for name in names if len({str(line[name]) for line in found}) > 1] or ["attack"]
    table = Table(title=f"{len(found)} cells, ROUGE-L with 95 % intervals", title_justify="left")
    for heading in (*differing, "status", "ROUGE-L", "control"):
        table.add_column(heading.replace("_", " "), overflow="fold")
    for line in found[:limit]:
        scores = [_interval(line, "rougeL"), _interval(line, "control_rougeL")]
        status = line["status"] + (f" ({line['limit']})" if line["limit"] else "")
        table.add_row(*("" if line[name] is None else str(line[name]) for name in differing), status, *scores)
    if len(found) > limit:
        table.caption = f"{len(found) - limit} more in {CSV_FILE}"
    console.print(table, markup=False)


def _interval(line: Line, name: str) -> str:
    mean, low, high = (line[f"{name}_{part}"] for part in ("mean", "low", "high"))
    if mean is None:
        return "-"
    # A limit ended the attack: it may have read more, never less.
    sign = "≥ " if line["status"] == "budget-exhausted" and not name.startswith("control") else ""
    return f"{sign}{mean:.1f} [{low:.0f}, {high:.0f}]"
