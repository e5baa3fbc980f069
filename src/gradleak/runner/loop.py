"""The loop of a sweep: hand out what is not finished, keep what ends, stop at any moment without loss."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass

from gradleak.budget import Budget
from gradleak.progress import SILENT, Progress
from gradleak.runner.cell import Cell, Limits, Status, SweepCell
from gradleak.runner.crew import Crew
from gradleak.runner.running import ended
from gradleak.runner.store import Store
from gradleak.runner.worker import Death

# A cell whose worker dies is tried so often in all; the machine may have been at fault, or the cell.
ATTEMPTS = 3
# How long to wait before asking again for cells that another sweep is at.
ASK_AGAIN = 1.0
SHOW_EVERY = 0.5


@dataclass(frozen=True)
class Outlook:
    """Which cells of a plan are finished, and which are to be run."""

    todo: list[Cell]
    statuses: dict[str, Status]
    stamps: dict[str, int]


def look(cells: Sequence[Cell], store: Store, limits: Limits, retry_failed: bool = False) -> Outlook:
    """What a folder holds of these cells. Failed ones stay failed unless they are to be retried; those that a limit
    ended are run again if the limits are wider now."""
    stamps = store.names()
    todo: list[Cell] = []
    statuses: dict[str, Status] = {}
    for cell in cells:
        head = store.head(cell.id) if cell.id in stamps else None
        again = head is None or (
            (head.status == "failed" and retry_failed)
            or (head.status == "budget-exhausted" and limits.wider_than(head.limits))
        )
        if again:
            todo.append(cell)
        elif head is not None:
            statuses[cell.id] = head.status
    return Outlook(todo, statuses, stamps)


class Loop:
    """Runs the cells of a plan on a crew and keeps them in a store."""

    def __init__(self, store: Store, crew: Crew, limits: Limits, outlook: Outlook, total: int) -> None:
        self.store, self.crew, self.limits = store, crew, limits
        self.statuses = dict(outlook.statuses)
        self._stamps = outlook.stamps
        self._total = total
        self._waiting = deque(outlook.todo)
        self._elsewhere: deque[Cell] = deque()
        self._attempts: Counter[str] = Counter()

    def run(self, budget: Budget, progress: Progress = SILENT) -> None:
        """Until every cell is finished, here or by another sweep, or the budget is over."""
        progress.begin("sweep", self._total, "cells")
        asked = shown = 0.0
        try:
            while not budget.over and (self._waiting or self._elsewhere or self.crew.busy):
                if not self._waiting and time.monotonic() - asked > ASK_AGAIN:
                    self._waiting, self._elsewhere, asked = self._elsewhere, deque(), time.monotonic()
                self._hand_out()
                for cell, end in self.crew.wait(SHOW_EVERY):
                    self._take(cell, end)
                if time.monotonic() - shown > SHOW_EVERY:
                    shown = time.monotonic()
                    self._show(progress)
        finally:
            self.crew.close()
            progress.end()

    def _hand_out(self) -> None:
        while self.crew.room and self._waiting:
            cell = self._waiting.popleft()
            if not self.store.claim(cell.id):
                self._elsewhere.append(cell)
                continue
            if self.store.stamp(cell.id) != self._stamps.get(cell.id):  # another sweep has just finished it
                self.store.release(cell.id)
                head = self.store.head(cell.id)
                self.statuses[cell.id] = "failed" if head is None else head.status
                continue
            self._attempts[cell.id] += 1
            self.store.begin(cell.id, self._attempts[cell.id])
            self.crew.start(cell, self.limits)

    def _take(self, cell: Cell, end: SweepCell | Death) -> None:
        tried = self._attempts[cell.id]
        if isinstance(end, Death):
            if tried < ATTEMPTS:
                self.store.release(cell.id)
                self._waiting.appendleft(cell)
                return
            end = ended(cell, "failed", self.limits, error=f"{end.why} ({tried} attempts)", seconds=0.0)
        self.store.keep(end.model_copy(update={"attempts": tried}))
        self.statuses[cell.id] = end.status

    def _show(self, progress: Progress) -> None:
        states = self.crew.states()
        text = "; ".join(f"{state.what} {state.share:.0%}" for state in states[:4])
        more = f" and {len(states) - 4} more" if len(states) > 4 else ""
        progress.advance(len(self.statuses), text=text + more)
