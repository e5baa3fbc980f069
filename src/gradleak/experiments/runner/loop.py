"""The loop of an experiment: hand out what is not finished, keep what ends, stop at any moment without loss."""

from __future__ import annotations

import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from gradleak.core.budget import Budget
from gradleak.core.progress import SILENT, Progress
from gradleak.experiments.crews.base import Crew
from gradleak.experiments.runner.cell import PATIENCE, Cell, Ends, Group, Limits, Part, Status, Work
from gradleak.experiments.runner.running import ended
from gradleak.experiments.runner.store import Store
from gradleak.experiments.runner.worker import Death

# A cell whose worker dies is tried so often in all; the machine may have been at fault, or the cell.
ATTEMPTS = 3
# How long to wait before asking again for cells that another process is at.
ASK_AGAIN = 1.0
SHOW_EVERY = 0.5
# Where audits and trainings are both to be done within a limit on time, an audit gives way after this share of it;
# where the experiment has an order of its own, all that waits gets a turn within this share.
TURN = 0.25

# What waits in the order in which it is to be run, given also what is being run and what there is of all cells.
Order = Callable[[Sequence[Group], Sequence[Group], Store], Sequence[Group]]


@dataclass(frozen=True)
class Outlook:
    """Which cells of a plan are finished, which are to be run, and the groups that these belong to."""

    todo: list[Cell]
    groups: list[Group]
    statuses: dict[str, Status]
    stamps: dict[str, int]


def look(cells: Sequence[Cell], store: Store, limits: Limits, retry_failed: bool = False) -> Outlook:
    """What a folder holds of these cells. Failed ones stay failed unless they are to be retried; those that a limit
    ended are run again if the limits are wider now."""
    stamps = store.names()
    todo: list[Cell] = []
    statuses: dict[str, Status] = {}
    for cell in {cell.id: cell for cell in cells}.values():
        head = store.head(cell.id) if cell.id in stamps else None
        again = head is None or (
            (head.status == "failed" and retry_failed)
            or (head.status == "budget-exhausted" and limits.wider_than(head.limits))
        )
        if again:
            todo.append(cell)
        elif head is not None:
            statuses[cell.id] = head.status
    groups = [group for group in in_turn(_groups(cells)) if not all(cell.id in statuses for cell in group)]
    return Outlook(todo, groups, statuses, stamps)


def _groups(cells: Sequence[Cell]) -> list[Group]:
    """The cells that run together, each group in an order that the plan's does not change."""
    groups: dict[str, dict[str, Cell]] = defaultdict(dict)
    for cell in cells:
        groups[cell.group or cell.id][cell.id] = cell
    return [tuple(sorted(members.values(), key=lambda cell: cell.id)) for members in groups.values()]


def in_turn(groups: Sequence[Group]) -> list[Group]:
    """Audits and trainings in turn, each kind in the plan's order and both ending together.

    A run that is stopped then has as much of one as of the other. The order follows from the plan alone, whatever
    of it is done.
    """
    counts = Counter(group[0].job.kind for group in groups)
    seen: Counter[str] = Counter()
    places = []
    for group in groups:
        kind = group[0].job.kind
        places.append(Fraction(2 * seen[kind] + 1, 2 * counts[kind]))
        seen[kind] += 1
    return [groups[i] for i in sorted(range(len(groups)), key=places.__getitem__)]


class Loop:
    """Runs the cells of a plan on a crew and keeps them in a store."""

    def __init__(
        self,
        store: Store,
        crew: Crew,
        limits: Limits,
        outlook: Outlook,
        total: int,
        what: str = "cells",
        order: Order | None = None,
    ) -> None:
        self.store, self.crew, self.limits = store, crew, limits
        self._what, self._order = what, order
        self._running: list[Group] = []
        self.statuses = dict(outlook.statuses)
        self._stamps = outlook.stamps
        self._total = total
        # Groups run whole, for a cell's result depends on those it runs with; only the cells that are open are kept.
        self._open = {cell.id for cell in outlook.todo}
        self._waiting = deque(outlook.groups)
        self._elsewhere: deque[Group] = deque()
        self._attempts: Counter[str] = Counter()
        self._parts: dict[str, Part] = {}
        self._finished_some = False

    def run(self, budget: Budget, progress: Progress = SILENT) -> None:
        """Until every cell is finished, here or by another process, or the budget is over.

        Where there is a limit on time, trials are run one by one: what is finished when it ends is kept.
        """
        self._one_by_one = budget.seconds is not None and self.limits.steps is None
        share = 1 if self._order is None else max(1, len(self._waiting))
        self._turn = None if budget.seconds is None else TURN * budget.seconds / share
        progress.begin(self._what, self._total, "cells")
        asked = shown = 0.0
        try:
            while not budget.over and (self._waiting or self._elsewhere or self.crew.busy):
                if not self._waiting and time.monotonic() - asked > ASK_AGAIN:
                    self._waiting, self._elsewhere, asked = self._elsewhere, deque(), time.monotonic()
                self._hand_out()
                for group, end in self.crew.wait(SHOW_EVERY):
                    self._take(group, end)
                if time.monotonic() - shown > SHOW_EVERY:
                    shown = time.monotonic()
                    self._show(progress)
            for group, end in self.crew.wait(0):  # the last that workers had to tell
                self._take(group, end)
        finally:
            self.crew.close()
            progress.end()
        if budget.limit == "time" and not self._finished_some:
            progress.message(
                "The budget ended before a cell or a trial of one was finished. The next run begins the same trial "
                "again, so give it more time."
            )

    def _hand_out(self) -> None:
        while self.crew.room and self._waiting:
            if self._order is not None:
                self._waiting = deque(self._order(tuple(self._waiting), tuple(self._running), self.store))
            group = self._waiting.popleft()
            if not self._claim(group):
                self._elsewhere.append(group)
                continue
            self._pass_over_finished(group)
            if names := self._open_in(group):
                self._attempts[group[0].id] += 1
                for name in names:
                    self.store.begin(name, self._attempts[group[0].id])
                self._running.append(group)
                self.crew.start(self._work(group))

    def _work(self, group: Group) -> Work:
        parts = {cell.id: self.store.part(cell.id) or Part(id=cell.id) for cell in group}
        self._parts |= parts
        return Work(group, self.limits, self._one_by_one, self._turn_of(group), parts, self._keep_part)

    def _turn_of(self, group: Group) -> float | None:
        """How long a cell may go on while others wait, by default of the other kind; its time limit is a turn too.

        A trial that was cut gets twice as far this time, so that it ends at some time, and what is lost stays less
        than what it takes.
        """
        if self._turn is None or self.limits.time is not None or len(group) > 1:
            return None
        kind = group[0].job.kind
        others = any(self._order is not None or other[0].job.kind != kind for other in self._waiting)
        return max(self._turn, 2 * self._parts[group[0].id].cut / PATIENCE) if others else None

    def _keep_part(self, more: Part) -> None:
        """Keep further trials of a cell that is at work, or what it spent on one that was cut."""
        if more.id in self._open:
            self._finished_some |= bool(more.trials)
            self._parts[more.id] = self._parts[more.id].joined(more)
            self.store.keep_part(self._parts[more.id])

    def _open_in(self, group: Group) -> list[str]:
        return [cell.id for cell in group if cell.id in self._open]

    def _claim(self, group: Group) -> bool:
        """Take all open cells of a group, or none."""
        taken: list[str] = []
        for name in self._open_in(group):
            if not self.store.claim(name):
                for other in taken:
                    self.store.release(other)
                return False
            taken.append(name)
        return True

    def _pass_over_finished(self, group: Group) -> None:
        """Close the cells that another process has finished in the meantime."""
        for name in self._open_in(group):
            if self.store.stamp(name) != self._stamps.get(name):
                self.store.release(name)
                head = self.store.head(name)
                self._close(name, "failed" if head is None else head.status)

    def _close(self, name: str, status: Status) -> None:
        self._finished_some = True
        self._open.discard(name)
        self.statuses[name] = status

    def _take(self, group: Group, ends: Ends | Death) -> None:
        tried = self._attempts[group[0].id]
        self._running = [other for other in self._running if other[0].id != group[0].id]
        if isinstance(ends, Death):
            if tried < ATTEMPTS:
                for name in self._open_in(group):
                    self.store.release(name)
                self._waiting.appendleft(group)
                return
            why = f"{ends.why} ({tried} attempts)"
            ends = [ended(cell, "failed", self.limits, error=why, seconds=0.0) for cell in group]
        for end in ends:
            if end.id in self._open:
                self.store.keep(end.model_copy(update={"attempts": tried}))
                self._close(end.id, end.status)
                self._parts.pop(end.id, None)
        if names := self._open_in(group):  # its turn is over: the others first
            self._attempts[group[0].id] -= 1
            for name in names:
                self.store.release(name)
            self._waiting.append(group)

    def _show(self, progress: Progress) -> None:
        states = self.crew.states()
        text = "; ".join(f"{state.what} {state.share:.0%}" for state in states[:4])
        more = f" and {len(states) - 4} more" if len(states) > 4 else ""
        progress.advance(len(self.statuses), text=text + more)
