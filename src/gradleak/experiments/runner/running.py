"""Running cells, in a process that keeps what it loaded for the next ones."""

from __future__ import annotations

import functools
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from gradleak.attacks import ATTACKS
from gradleak.audits.redact import redact
from gradleak.audits.results import Results
from gradleak.audits.run import Question, audit_together
from gradleak.core.budget import Budget, LimitName
from gradleak.core.errors import GradleakError
from gradleak.core.progress import SILENT, Progress
from gradleak.data.texts import Row, read_data
from gradleak.experiments.kept import digest_model, digest_rows
from gradleak.experiments.runner.cell import Cell, Ends, Group, Limits, Status, SweepCell
from gradleak.experiments.runner.code import code_version
from gradleak.models.families import Task
from gradleak.models.load import load_text_model
from gradleak.models.text import TextModel


def run_cells(
    cells: Group, limits: Limits, *, begun: Callable[[], None] = lambda: None, progress: Progress = SILENT
) -> Ends:
    """How each of these cells ended, which share a model and an attack. An error of any kind ends its own cell only.

    `begun` is called when the model is loaded: from then on time counts, so that it does not matter who loads it.
    """
    started = time.monotonic()
    try:
        model, questions = _loaded(cells)
        begun()
        budget = limits.budget(len(cells))
        settings = cells[0].settings
        method = ATTACKS.get(settings.attack).from_settings(settings.options)
        found = audit_together(questions, model, method, budget=budget, progress=progress)
    except Exception as problem:  # a cell must not take the others down, whatever it stumbles over
        if len(cells) > 1:  # only one may be at fault
            return [end for cell in cells for end in run_cells((cell,), limits, begun=begun, progress=progress)]
        error = str(problem) if isinstance(problem, GradleakError) else _where(problem)
        return [ended(cells[0], "failed", limits, error=error, seconds=time.monotonic() - started)]
    seconds = (time.monotonic() - started) / len(cells)
    return [_audited(*each, limits, budget, seconds) for each in zip(cells, found, strict=True)]


def _audited(cell: Cell, results: Results, limits: Limits, budget: Budget, seconds: float) -> SweepCell:
    results = redact(results) if cell.settings.redact else results
    if results.status == "completed":
        return ended(cell, "completed", limits, results=results, seconds=seconds)
    limit = budget.stopped_by or "time"
    error = f"the attack reached its limit of {_words(limits, limit)}; its scores are a lower bound"
    return ended(cell, "budget-exhausted", limits, limit=limit, error=error, results=results, seconds=seconds)


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


def _loaded(cells: Group) -> tuple[TextModel, list[Question]]:
    """The model of these cells, and what they ask of it, if all still is what the sweep was planned with."""
    questions = []
    for cell in cells:
        settings = cell.settings
        model, weights = _model(settings.model, settings.task, settings.num_labels, settings.device)
        rows, texts = _rows(settings.data, settings.text_column, settings.label_column)
        if weights != cell.hashes.model:
            raise GradleakError(f"the model {settings.model} is not the one the sweep was planned with")
        if texts != cell.hashes.data:
            raise GradleakError(f"the data {settings.data} is not what the sweep was planned with")
        if code_version(settings.attack, settings.defenses) != cell.hashes.code:
            raise GradleakError("this worker runs other code than the sweep was planned with")
        questions.append(Question.of(settings, rows, seed=cell.seeds.data, attack_seed=cell.seeds.attack))
    return model, questions


@functools.lru_cache(maxsize=1)
def _model(name: str, task: Task | None, num_labels: int | None, device: str) -> tuple[TextModel, str]:
    model = load_text_model(name, task=task, num_labels=num_labels, device=device)
    return model, digest_model(model)


@functools.lru_cache(maxsize=8)
def _rows(source: str, text_column: str | None, label_column: str | None) -> tuple[list[Row], str]:
    rows = read_data(source, text_column, label_column)
    return rows, digest_rows(rows)


def _words(limits: Limits, limit: LimitName) -> str:
    said = limits.model_dump()[limit]
    return f"{said:,} steps" if limit == "steps" else str(said)


def _where(problem: Exception) -> str:
    """An unforeseen error in one line: what it is, and where in the code it happened."""
    frame = traceback.extract_tb(problem.__traceback__)[-1]
    text = " ".join(str(problem).split())[:500]
    return f"{type(problem).__name__}: {text} ({Path(frame.filename).name}, line {frame.lineno})"
