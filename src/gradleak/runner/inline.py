"""No workers at all: cells one after another in this process, to look into one with a debugger, or for small sweeps.

Nothing watches over a cell here, so memory is not limited and a cell that hangs is not killed.
"""

from __future__ import annotations

import torch

from gradleak.runner.cell import Cell, Limits, SweepCell
from gradleak.runner.crew import State
from gradleak.runner.running import run_cell
from gradleak.runner.worker import Death


class InlineCrew:
    """Runs a cell when it is waited for."""

    def __init__(self, threads: int) -> None:
        torch.set_num_threads(threads)
        self._next: tuple[Cell, Limits] | None = None

    @property
    def room(self) -> int:
        return 1 - self.busy

    @property
    def busy(self) -> int:
        return int(self._next is not None)

    def start(self, cell: Cell, limits: Limits) -> None:
        self._next = cell, limits

    def wait(self, seconds: float) -> list[tuple[Cell, SweepCell | Death]]:
        if self._next is None:
            return []
        cell, limits = self._next
        self._next = None
        return [(cell, run_cell(cell, limits))]

    def states(self) -> list[State]:
        return []

    def close(self) -> None:
        self._next = None
