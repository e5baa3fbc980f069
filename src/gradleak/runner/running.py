"""Running one cell, in a process that keeps what it loaded for the next one."""

from __future__ import annotations

import functools
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from gradleak.auditing import audit
from gradleak.budget import Budget, LimitName
from gradleak.cells import digest_model, digest_rows
from gradleak.errors import GradleakError
from gradleak.models.families import Task
from gradleak.models.load import load_model
from gradleak.models.target import TargetModel
from gradleak.progress import SILENT, Progress
from gradleak.redact import redact
from gradleak.results import Results
from gradleak.runner.cell import Cell, Limits, Status, SweepCell
from gradleak.runner.code import code_version
from gradleak.scenario.data import Row, read_data


def run_cell(
    cell: Cell, limits: Limits, *, begun: Callable[[], None] = lambda: None, progress: Progress = SILENT
) -> SweepCell:
    """The cell with how it ended. An error of any kind ends this cell only, and is kept with it.

    `begun` is called when the model is loaded: from then on time counts, so that it does not matter who loads it.
    """
    started = time.monotonic()
    status: Status = "failed"
    results: Results | None = None
    limit: LimitName | None = None
    error: str | None = None
    try:
        model, rows = loaded(cell)
        begun()
        budget = Budget(limits.seconds, limits.steps)
        results = _audited(cell, model, rows, budget, progress)
        if results.status == "completed":
            status = "completed"
        else:
            status, limit = "budget-exhausted", budget.stopped_by or "time"
            error = f"the attack reached its limit of {_words(limits, limit)}; its scores are a lower bound"
    except GradleakError as problem:
        error = str(problem)
    except Exception as problem:  # a cell must not take the others down, whatever it stumbles over
        error = _where(problem)
    return ended(cell, status, limits, limit=limit, error=error, results=results, seconds=time.monotonic() - started)


def ended(
    cell: Cell,
    status: Status,
    limits: Limits,
    *,
    seconds: float,
    limit: LimitName | None = None,
    error: str | None = None,
    attempts: int = 1,
    results: Results | None = None,
) -> SweepCell:
    """A cell with how it ended."""
    return SweepCell(
        **dict(cell),
        status=status,
        limit=limit,
        error=error,
        limits=limits,
        attempts=attempts,
        seconds=round(seconds, 3),
        results=results,
    )


def loaded(cell: Cell) -> tuple[TargetModel, list[Row]]:
    """The model and the texts of a cell, if they still are what the sweep was planned with."""
    settings = cell.settings
    model, weights = _model(settings.model, settings.task, settings.num_labels, settings.device)
    rows, texts = _rows(settings.data, settings.text_column, settings.label_column)
    if weights != cell.hashes.model:
        raise GradleakError(f"the model {settings.model} is not the one the sweep was planned with")
    if texts != cell.hashes.data:
        raise GradleakError(f"the data {settings.data} is not what the sweep was planned with")
    if code_version(settings.attack, settings.defenses) != cell.hashes.code:
        raise GradleakError("this worker runs other code than the sweep was planned with")
    return model, rows


@functools.lru_cache(maxsize=1)
def _model(name: str, task: Task | None, num_labels: int | None, device: str) -> tuple[TargetModel, str]:
    model = load_model(name, task=task, num_labels=num_labels, device=device)
    return model, digest_model(model)


@functools.lru_cache(maxsize=1)
def _rows(source: str, text_column: str | None, label_column: str | None) -> tuple[list[Row], str]:
    rows = read_data(source, text_column, label_column)
    return rows, digest_rows(rows)


def _audited(cell: Cell, model: TargetModel, rows: list[Row], budget: Budget, progress: Progress) -> Results:
    settings = cell.settings.model_dump(
        exclude={"out", "redact", "budget", "seed", "model", "data", "text_column", "label_column"}
    )
    results = audit(
        model,
        data=rows,
        seed=cell.seeds.data,
        attack_seed=cell.seeds.attack,
        budget=budget,
        progress=progress,
        **settings,
    )
    results.scenario.data = cell.settings.data
    return redact(results) if cell.settings.redact else results


def _words(limits: Limits, limit: LimitName) -> str:
    said = limits.model_dump()[limit]
    return f"{said:,} steps" if limit == "steps" else str(said)


def _where(problem: Exception) -> str:
    """An unforeseen error in one line: what it is, and where in the code it happened."""
    frame = traceback.extract_tb(problem.__traceback__)[-1]
    text = " ".join(str(problem).split())[:500]
    return f"{type(problem).__name__}: {text} ({Path(frame.filename).name}, line {frame.lineno})"
