"""What every experiment is: a plan, which lists jobs, and a summary, made of the cells that they became.

Sweeps, maps, checkpoints, frontiers, utility and recipes differ in these two alone. Running them is the same for
all: workers here or on a cluster, finished cells kept and never run twice, limits, a preview, and one rule for what
makes a kept result valid.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, TypeVar

from pydantic import BaseModel

from gradleak.audits.results import Trial
from gradleak.audits.spec import AuditSpec
from gradleak.core.budget import Budget
from gradleak.core.errors import GradleakError
from gradleak.core.files import output_folder, write_text
from gradleak.core.privacy import redacting
from gradleak.core.progress import SILENT, Progress
from gradleak.experiments.crews.base import Crew
from gradleak.experiments.crews.inline import InlineCrew
from gradleak.experiments.crews.local import LocalCrew, workers_that_fit
from gradleak.experiments.runner.cell import Cell, EndedCell, Limits, Status
from gradleak.experiments.runner.estimate import Estimate, estimate
from gradleak.experiments.runner.known import read_known, write_known
from gradleak.experiments.runner.loop import Loop, Order, look
from gradleak.experiments.runner.plan import Planned, SeedRule, plan_cells
from gradleak.experiments.runner.store import PLAN, Plan, Store
from gradleak.experiments.runner.subjects import Subjects
from gradleak.experiments.runner.worker import planned_memory
from gradleak.experiments.specs import ExperimentSpec
from gradleak.models.base import Target

# How an experiment ended: all cells are there, the budget or the user stopped it, or some cells failed.
ExperimentStatus = Literal["completed", "budget-exhausted", "interrupted", "failed"]

Kept = TypeVar("Kept", bound=BaseModel)
Summary = TypeVar("Summary")
Spec = TypeVar("Spec", bound=AuditSpec | ExperimentSpec)


@dataclass(frozen=True)
class RunOptions:
    """How the cells of an experiment are run; none of it but `threads` changes a result.

    Args:
        workers: Processes of this machine; default: as many as have processors.
        executor: "inline" runs the cells in this process, one after another.
        crew: Whoever else runs them, such as `RayCrew`.
        threads: Threads of a worker.
        limits: What one cell may take.
        retry_failed: Whether failed cells are run once more.
    """

    workers: int | None = None
    executor: Literal["local", "inline"] = "local"
    crew: Crew | None = None
    threads: int = 1
    limits: Limits = field(default_factory=Limits)
    retry_failed: bool = False


@dataclass(frozen=True)
class Finished:
    """The cells of an experiment, in the order of its jobs, after it was run as far as the budget went."""

    folder: Path
    cells: Sequence[Cell]
    status: ExperimentStatus
    statuses: dict[str, Status]
    subjects: Subjects

    def ended(self, cell: Cell) -> EndedCell | None:
        """How a cell ended; None if it was not run."""
        return self.read(cell, EndedCell)

    def completed(self, cell: Cell) -> EndedCell | None:
        """The cell if it ran to its end: what a limit ended is never taken for what could be read."""
        return self.ended(cell) if self.statuses.get(cell.id) == "completed" else None

    def trials_so_far(self, cell: Cell) -> Sequence[Trial]:
        """The finished trials of a cell that has not ended; of one that a limit ended, none."""
        part = None if cell.id in self.statuses else Store(self.folder).part(cell.id)
        return () if part is None else part.trials

    def read(self, cell: Cell, kind: type[Kept]) -> Kept | None:
        """The part of an ended cell that `kind` wants; tables of thousands of cells do not load their trials."""
        return Store(self.folder).read(cell.id, kind)


class Experiment(ABC, Generic[Spec, Summary]):
    """A plan and a summary."""

    kind: ClassVar[str]
    seeds: ClassVar[SeedRule] = "given"

    def __init__(self, spec: Spec) -> None:
        self.spec = spec

    @property
    def audit(self) -> AuditSpec:
        """What all cells share."""
        return self.spec if isinstance(self.spec, AuditSpec) else self.spec.audit

    @abstractmethod
    def jobs(self, subjects: Subjects) -> list[Planned]:
        """Everything that is to be done. Whatever could not run is refused here, before any work is spent."""

    def order(self, cells: Sequence[Cell], subjects: Subjects) -> Order | None:
        """What decides which cell is next, by what there is of the others; None for the order of the plan."""
        return None

    @abstractmethod
    def summarise(self, finished: Finished) -> Summary:
        """What the cells come to."""


def run_experiment(
    experiment: Experiment[Any, Summary],
    out: str | Path,
    *,
    model: Target | None = None,
    data: Any = None,
    options: RunOptions | None = None,
    budget: Budget | str | float | None = None,
    progress: Progress = SILENT,
) -> Summary:
    """Run every cell that is not finished yet, and sum all of them up.

    Cells lie in the folder as they end and are not run again, nor are the finished trials of those that did not end.
    Another process may work in the same folder at the same
    time. A model or data given in Python stands in for what the spec names, and is known to this process alone, so it
    runs their cells itself.
    """
    options, folder = options or RunOptions(), Path(out)
    limit = experiment.audit.time_limit() if budget is None else Budget.of(budget)
    with redacting(experiment.audit.redact), output_folder(folder), Store(folder) as store:
        progress.begin("planning", 0)
        subjects = Subjects(model=model, data=data, known=read_known(folder), progress=progress)
        cells = plan_cells(experiment.jobs(subjects), subjects, options.threads, experiment.seeds)
        write_known(subjects.known, folder)
        write_plan(experiment, cells, folder)
        outlook = look(cells, store, options.limits, options.retry_failed)
        statuses = outlook.statuses
        if outlook.todo:
            crew = options.crew or _crew(
                options, experiment.audit.device, subjects, limit, progress, len(outlook.todo)
            )
            total = len({cell.id for cell in cells})
            order = experiment.order(cells, subjects)
            loop = Loop(store, crew, options.limits, outlook, total, experiment.kind, order)
            # Cells of this process show their own progress.
            loop.run(limit, SILENT if isinstance(crew, InlineCrew) else progress)
            statuses = loop.statuses
    progress.begin("summing up", 0)
    finished = Finished(folder, cells, _status(cells, statuses, limit), statuses, subjects)
    return experiment.summarise(finished)


def write_plan(experiment: Experiment[Any, Any], cells: Sequence[Cell], folder: Path) -> Path:
    """Write plan.json: what was asked, and which cells that is."""
    settings = experiment.spec.model_dump(mode="json", exclude={"out"})
    trainings = [cell.id for cell in cells if cell.job.kind == "training"]
    plan = Plan(kind=experiment.kind, settings=settings, cells=[cell.id for cell in cells], trainings=trainings)
    return write_text(folder / PLAN, plan.model_dump_json(indent=1) + "\n")


def _crew(
    options: RunOptions, device: str, subjects: Subjects, budget: Budget, progress: Progress, total: int
) -> Crew:
    """This process, or workers on this machine, each with its share of the memory, or of its own limit."""
    if options.executor == "inline" or subjects.in_memory:
        return InlineCrew(options.threads, subjects, budget, progress, total)
    count = options.workers if options.workers is not None else workers_that_fit(options.threads)
    return LocalCrew(count, options.threads, planned_memory(options.limits, device, count))


def _status(cells: Sequence[Cell], statuses: dict[str, Status], budget: Budget) -> ExperimentStatus:
    """How it ended, by how its cells did."""
    ends = [statuses.get(cell.id) for cell in cells]
    if all(end == "completed" for end in ends):
        return "completed"
    if "failed" in ends:
        return "failed"
    return budget.reason if budget.over else "budget-exhausted"


def raise_if_all_failed(finished: Finished) -> None:
    """Where no cell could be run at all, the first one's error is the experiment's."""
    if finished.cells and all(finished.statuses.get(cell.id) == "failed" for cell in finished.cells):
        end = finished.ended(finished.cells[0])
        raise GradleakError(end.error if end is not None and end.error else "every cell failed")


@dataclass(frozen=True)
class Preview:
    """What an experiment would do."""

    cells: int
    statuses: dict[str, int]
    todo: list[Cell]
    groups: int
    estimate: Estimate


def preview(
    experiment: Experiment[Any, Any],
    out: str | Path,
    *,
    options: RunOptions | None = None,
    progress: Progress = SILENT,
) -> Preview:
    """Plan an experiment and say what is left of it and what that will cost, without running or writing anything."""
    options, folder = options or RunOptions(), Path(out)
    progress.begin("planning", 0)
    store, subjects = Store(folder), Subjects(known=read_known(folder), progress=progress)
    with redacting(experiment.audit.redact):
        cells = plan_cells(experiment.jobs(subjects), subjects, options.threads, experiment.seeds)
    outlook = look(cells, store, options.limits, options.retry_failed)
    heads = ((cell, store.head(cell.id)) for cell in cells if cell.id in outlook.statuses)
    measured = [(cell, head.seconds) for cell, head in heads if head is not None and head.status != "failed"]
    parts = {cell.id: part for cell in outlook.todo if (part := store.part(cell.id)) is not None}
    kept = {name: len(part.trials) for name, part in parts.items()}
    return Preview(
        cells=len({cell.id for cell in cells}),
        statuses=dict(Counter(outlook.statuses.values())),
        todo=outlook.todo,
        groups=len(outlook.groups),
        estimate=estimate(outlook.todo, measured, options.limits, kept),
    )
