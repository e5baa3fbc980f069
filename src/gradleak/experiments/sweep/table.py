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
from rich.table import Table

from gradleak.audits.spec import AuditSpec, about
from gradleak.core.budget import LimitName
from gradleak.core.console import SafeConsole
from gradleak.core.files import write_text
from gradleak.defenses.chains import label
from gradleak.experiments.experiment import Finished
from gradleak.experiments.runner.cell import Cell, Status
from gradleak.scoring.interval import Interval
from gradleak.scoring.metrics import label_of, metric_names
from gradleak.scoring.scale import SCALES

CSV_FILE, JSON_FILE = "table.csv", "table.json"
NOT_RUN, UNFINISHED = "not run", "unfinished"
# Digits kept: enough for every use, and few enough that rounding noise of the last bits does not show.
DIGITS = 6
# The settings that tell cells apart, in the order of the spec.
SETTINGS = [name for name, field in AuditSpec.model_fields.items() if about(field, "column")]

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


def table_lines(finished: Finished) -> list[Line]:
    """A line for every cell of a plan, finished or not, sorted by what it is."""
    cells = {cell.id: cell for cell in finished.cells}.values()
    modalities = dict.fromkeys(finished.subjects.modality(cell.job.spec) for cell in cells)
    asked = dict.fromkeys(name for cell in cells for name in cell.job.spec.metrics)
    metrics = list(dict.fromkeys([*(name for modality in modalities for name in metric_names(modality)), *asked]))
    lines = [_line(cell, finished, metrics) for cell in cells]
    return sorted(lines, key=lambda line: [(line[name] is not None, line[name]) for name in (*SETTINGS, "cell")])


def _line(cell: Cell, finished: Finished, metrics: Sequence[str]) -> Line:
    end = finished.read(cell, _Ended)
    begun = UNFINISHED if end is None and finished.trials_so_far(cell) else NOT_RUN
    line: Line = {**_settings(cell.job.spec), "cell": cell.id}
    line["status"] = begun if end is None else end.status
    line["limit"] = None if end is None else end.limit
    scores = end.results if end is not None and end.results is not None else _Scores(summary={}, control={})
    for metric in metrics:
        for kind, intervals in (("", scores.summary), ("control_", scores.control)):
            interval = intervals.get(metric)
            for part in ("mean", "low", "high"):
                value = None if interval is None else round(getattr(interval, part), DIGITS)
                line[f"{kind}{metric}_{part}"] = value
    line["error"] = None if end is None else end.error
    return line


def _settings(spec: AuditSpec) -> Line:
    """Those of the columns, an attack with its options."""
    ordered = spec.model_copy(update={"options": dict(sorted(spec.options.items()))})
    texts = {"defenses": label(spec.defenses), "attack": ordered.attack_label, "known": ",".join(spec.known)}
    return {name: texts.get(name, getattr(spec, name)) for name in SETTINGS}


def write_table(lines: Sequence[Line], folder: Path) -> tuple[Path, Path]:
    """Write table.csv and table.json."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    rows = ",\n".join(json.dumps(line, ensure_ascii=False) for line in lines)
    return write_text(folder / CSV_FILE, text.getvalue()), write_text(folder / JSON_FILE, f"[\n{rows}\n]\n")


def print_table(lines: Sequence[Line], console: SafeConsole, limit: int = 40) -> None:
    """The columns in which cells differ, with the measure of the leak beside its control."""
    differing = [name for name in SETTINGS if len({str(line[name]) for line in lines}) > 1] or ["attack"]
    measures = [scale.metric for scale in SCALES.values() if f"{scale.metric}_mean" in lines[0]]
    labels = " and ".join(map(label_of, measures))
    table = Table(title=f"{len(lines)} cells, {labels} with 95 % intervals", title_justify="left")
    columns = [heading for name in measures for heading in (label_of(name), "control")]
    for heading in (*differing, "status", *columns):
        table.add_column(heading.replace("_", " "), overflow="fold")
    for line in lines[:limit]:
        scores = [_interval(line, f"{kind}{name}") for name in measures for kind in ("", "control_")]
        status = line["status"] + (f" ({line['limit']})" if line["limit"] else "")
        table.add_row(*("" if line[name] is None else str(line[name]) for name in differing), status, *scores)
    if len(lines) > limit:
        table.caption = f"{len(lines) - limit} more in {CSV_FILE}"
    console.print(table)


def _interval(line: Line, name: str) -> str:
    mean, low, high = (line[f"{name}_{part}"] for part in ("mean", "low", "high"))
    if mean is None:
        return "-"
    # A limit ended the attack: it may have read more, never less.
    sign = "≥ " if line["status"] == "budget-exhausted" and not name.startswith("control") else ""
    return f"{sign}{mean:.1f} [{low:.0f}, {high:.0f}]"
