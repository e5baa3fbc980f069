"""What is kept of cells while they run: every trial that is finished before the last."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence

from gradleak.audits.redact import redact_trial
from gradleak.audits.results import Trial
from gradleak.core.budget import Budget
from gradleak.experiments.runner.cell import Cell, Part, Work
from gradleak.models.tasks import Modality


class StoppedError(Exception):
    """The whole experiment's budget is over, or the cells' turn: those that did not end yet do not end now."""


class Keeper:
    """Tells of every finished trial while there are others to come."""

    def __init__(self, work: Work, modality: Modality, started: float, within: Budget | None) -> None:
        """`within` is over when the cells must have given way."""
        self.work, self.modality, self.within = work, modality, within
        self._started = self._told = started
        self._open = {cell.id: self._trials(cell) - {trial.index for trial in self.kept(cell)} for cell in work.cells}

    @staticmethod
    def _trials(cell: Cell) -> set[int]:
        return set(range(cell.job.spec.trials))

    def kept(self, cell: Cell) -> Sequence[Trial]:
        """The trials that are there from before."""
        part = self.work.kept.get(cell.id)
        return () if part is None else part.trials

    def before(self, cell: Cell) -> float:
        """The seconds that these took."""
        part = self.work.kept.get(cell.id)
        return 0.0 if part is None else part.seconds

    def measured(self, trials: Sequence[tuple[int, Trial]]) -> None:
        """Pass on those that ran to their end; once all have, the cells end and nothing need be passed on.

        Controls and scores look at the budget too, so nothing counts that was measured after its end.
        """
        if self.within is not None and self.within.over:
            raise StoppedError
        done: dict[int, list[Trial]] = defaultdict(list)
        for number, trial in trials:
            if trial.status == "completed":
                done[number].append(trial)
                self._open[self.work.cells[number].id].discard(trial.index)
        if not any(self._open.values()):
            return
        now = time.monotonic()
        for number, some in done.items():
            cell = self.work.cells[number]
            if cell.job.spec.redact:
                some = [redact_trial(trial, self.modality) for trial in some]
            self.work.keep(Part(id=cell.id, trials=tuple(some), seconds=round((now - self._told) / len(done), 3)))
        self._told = now
        if self.work.turn is not None and now - self._started > self.work.turn:
            raise StoppedError

    def gave_way(self) -> None:
        """Pass on what was spent on a trial that was cut, or on a training: the next turn is longer."""
        if self.within is None or not self.within.over:
            return  # between two trials
        seconds = round((time.monotonic() - self._told) / len(self.work.cells), 3)
        for cell in self.work.cells:
            self.work.keep(Part(id=cell.id, seconds=seconds, cut=seconds))
