"""`gradleak.sweep`: plan, run what is not finished, write the table."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from gradleak.core.budget import Budget
from gradleak.core.errors import GradleakError
from gradleak.core.files import output_folder, write_text
from gradleak.core.progress import SILENT, Progress
from gradleak.experiments.crews.base import Crew
from gradleak.experiments.crews.local import LocalCrew, workers_that_fit
from gradleak.experiments.runner.cell import Cell
from gradleak.experiments.runner.estimate import Estimate, estimate
from gradleak.experiments.runner.identity import plan_cells
from gradleak.experiments.runner.known import read_known, write_known
from gradleak.experiments.runner.loop import Loop, look
from gradleak.experiments.runner.store import PLAN, Plan, Store
from gradleak.experiments.runner.worker import planned_memory
from gradleak.experiments.sweep.plan import SweepConfig, load_sweep
from gradleak.experiments.sweep.table import Line, lines, write_table


@dataclass(frozen=True)
class SweepResult:
    """A sweep's table, where it lies, and how its cells ended."""

    folder: Path
    lines: list[Line]

    @property
    def statuses(self) -> dict[str, int]:
        """How many cells ended how."""
        return dict(Counter(line["status"] for line in self.lines))


def sweep(
    config: SweepConfig | str | Path,
    out: str | Path | None = None,
    *,
    workers: int | None = None,
    crew: Crew | None = None,
    retry_failed: bool = False,
    budget: Budget | None = None,
    progress: Progress = SILENT,
) -> SweepResult:
    """Run every cell of a sweep that is not finished yet, and write the table of all.

    Cells lie in the folder as they end and are not run again; another sweep may work in the same folder at the same
    time. `config` may be the path of a sweep.yaml. `crew` runs the cells somewhere else than in `workers` processes
    of this machine.
    """
    config = config if isinstance(config, SweepConfig) else load_sweep(Path(config))
    folder = sweep_folder(config, out)
    with output_folder(folder), Store(folder) as store:
        known = read_known(folder)
        cells = plan_cells(config, known, progress)
        write_known(known, folder)
        write_plan(config, cells, folder)
        outlook = look(cells, store, config.limits, retry_failed)
        if outlook.todo:
            Loop(store, crew or local_crew(config, workers), config.limits, outlook, len(cells)).run(
                budget or Budget(), progress
            )
        found = lines(cells, folder)
        write_table(found, folder)
    return SweepResult(folder, found)


def sweep_folder(config: SweepConfig, out: str | Path | None) -> Path:
    chosen = out or config.out
    if chosen is None:
        raise GradleakError("a sweep needs a folder: out in its file, or --out")
    return Path(chosen)


def write_plan(config: SweepConfig, cells: list[Cell], folder: Path) -> Path:
    """Write sweep.json: what was asked, and which cells that is."""
    plan = Plan(config=config.model_dump(mode="json", exclude={"out"}), cells=[cell.id for cell in cells])
    return write_text(folder / PLAN, plan.model_dump_json(indent=1) + "\n")


def local_crew(config: SweepConfig, workers: int | None) -> LocalCrew:
    """Workers on this machine, each with its share of the memory, or of its own limit."""
    count = workers if workers is not None else workers_that_fit(config.threads)
    return LocalCrew(count, config.threads, planned_memory(config.limits, config.device, count))


@dataclass(frozen=True)
class Preview:
    """What a sweep would do."""

    cells: int
    statuses: dict[str, int]
    todo: list[Cell]
    groups: int
    estimate: Estimate


def preview(
    config: SweepConfig, out: str | Path | None = None, *, retry_failed: bool = False, progress: Progress = SILENT
) -> Preview:
    """Plan a sweep and say what is left of it and what that will cost, without running or writing anything."""
    folder = sweep_folder(config, out)
    store = Store(folder)
    cells = plan_cells(config, read_known(folder), progress)
    outlook = look(cells, store, config.limits, retry_failed)
    heads = ((cell, store.head(cell.id)) for cell in cells if cell.id in outlook.statuses)
    measured = [(cell, head.seconds) for cell, head in heads if head is not None and head.status != "failed"]
    return Preview(
        cells=len(cells),
        statuses=dict(Counter(outlook.statuses.values())),
        todo=outlook.todo,
        groups=len(outlook.groups),
        estimate=estimate(outlook.todo, measured, config.limits),
    )
