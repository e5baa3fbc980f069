"""What planning and keeping a large sweep costs, without the attacks: real plans, real files, one result for all."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from gradleak.core.errors import GradleakError
from gradleak.core.files import output_folder
from gradleak.core.progress import SILENT, Progress
from gradleak.experiments.experiment import Finished
from gradleak.experiments.runner.cell import Limits, Work
from gradleak.experiments.runner.loop import look
from gradleak.experiments.runner.plan import plan_cells
from gradleak.experiments.runner.running import run_cells
from gradleak.experiments.runner.store import CELLS, Store
from gradleak.experiments.runner.subjects import Subjects
from gradleak.experiments.sweep.run import Sweep
from gradleak.experiments.sweep.spec import SweepSpec
from gradleak.experiments.sweep.table import table_lines, write_table


@dataclass(frozen=True)
class StoreBench:
    """Processor and wall-clock seconds of each piece of work, for all cells together."""

    cells: int
    megabytes: float
    seconds: dict[str, tuple[float, float]]

    def __str__(self) -> str:
        lines = [
            f"  {name:<28} {wall:7.1f} s, {busy:6.1f} s of it computing, {1e3 * busy / self.cells:6.2f} ms a cell"
            for name, (busy, wall) in self.seconds.items()
        ]
        return "\n".join([f"{self.cells:,} cells, {self.megabytes:,.0f} MB", *lines])


def bench_store(folder: Path, model: str, cells: int, progress: Progress = SILENT) -> StoreBench:
    """Plan so many cells, claim, log and write each as if it had just ended, look them over, make the table."""
    seconds: dict[str, tuple[float, float]] = {}
    spec = SweepSpec.model_validate(
        {
            "models": [model],
            "batch_sizes": [1, 2, 4, 8],
            "defenses": ["none", "sign", "noise:sigma=0.001", "noise:sigma=0.01", "frozen"],
            "attacks": ["bag", "exact", "tag", "auto"],
            "seeds": max(1, cells // 80),
            "trials": 4,
        }
    )
    subjects = Subjects()
    with output_folder(folder):
        if any(folder.iterdir()):
            raise GradleakError(f"{folder} is not empty; give a new folder")
        with _timed(seconds, "plan, the model loaded once"):
            planned = plan_cells(Sweep(spec).jobs(subjects), subjects, 1, Sweep.seeds)
        with _timed(seconds, "plan again, the model known"):
            again = Subjects(known=subjects.known)
            plan_cells(Sweep(spec).jobs(again), again, 1, Sweep.seeds)
        (done,) = run_cells(Work((planned[0],)), subjects)
        with Store(folder) as store:
            progress.begin("writing", len(planned), "cells")
            with _timed(seconds, "claim, log and write all"):
                for number, cell in enumerate(planned):
                    store.claim(cell.id)
                    store.begin(cell.id, 1)
                    store.keep(done.model_copy(update=dict(cell)))
                    progress.advance(number + 1)
            progress.end()
            with _timed(seconds, "look them over"):
                outlook = look(planned, store, Limits())
        if outlook.todo:
            raise GradleakError(f"{len(outlook.todo)} cells that were written are not there")
        with _timed(seconds, "make the table"):
            write_table(table_lines(Finished(folder, planned, "completed", {}, subjects)), folder)
        size = sum(path.stat().st_size for path in (folder / CELLS).iterdir())
    return StoreBench(len(planned), size / (1 << 20), seconds)


class _timed:  # noqa: N801 - read as a verb
    def __init__(self, seconds: dict[str, tuple[float, float]], name: str) -> None:
        self._seconds, self._name = seconds, name

    def __enter__(self) -> None:
        self._busy, self._wall = time.process_time(), time.monotonic()

    def __exit__(self, *_: object) -> None:
        self._seconds[self._name] = (time.process_time() - self._busy, time.monotonic() - self._wall)
