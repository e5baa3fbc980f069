"""No workers at all: cells one after another in this process.

To look into one with a debugger, for small experiments, and for models and data that only this process has. Nothing
watches over a cell here, so memory is not limited and a cell that hangs is not killed.
"""

from __future__ import annotations

import functools

import torch

from gradleak.core.budget import Budget, Stopped
from gradleak.core.progress import SILENT, PartOf, Progress
from gradleak.core.supervision import supervised
from gradleak.experiments.crews.base import State
from gradleak.experiments.runner.cell import Ends, Group, Work
from gradleak.experiments.runner.running import run_cells
from gradleak.experiments.runner.subjects import Subjects
from gradleak.experiments.runner.worker import Death


class InlineCrew:
    """Runs cells when they are waited for."""

    def __init__(
        self,
        threads: int,
        subjects: Subjects | None = None,
        budget: Budget | None = None,
        progress: Progress = SILENT,
        total: int | None = None,
    ) -> None:
        """`subjects` may hold models and data that were given in Python; `budget` is the whole experiment's.

        `total` is the number of cells that are to be run, for progress.
        """
        torch.set_num_threads(threads)
        self._subjects, self._budget, self._progress = subjects or Subjects(), budget or Budget(), progress
        self._next: Work | None = None
        self._begun, self._total = 0, "" if total is None else f" of {total}"

    @property
    def room(self) -> int:
        return 1 - self.busy

    @property
    def busy(self) -> int:
        return int(self._next is not None)

    def start(self, work: Work) -> None:
        self._next = work

    def wait(self, seconds: float) -> list[tuple[Group, Ends | Death]]:
        if self._next is None:
            return []
        work, self._next = self._next, None
        progress = PartOf(self._progress, f"cell {self._begun + 1}{self._total}")
        self._begun += len(work.cells)
        run = functools.partial(run_cells, work, self._subjects, within=self._budget, progress=progress)
        try:
            return [(work.cells, supervised(run, self._budget))]
        except Stopped:  # the end of the whole experiment; the next run goes on with what the cells have kept
            return [(work.cells, [])]

    def states(self) -> list[State]:
        return []

    def close(self) -> None:
        self._next = None
