"""What runs the cells of an experiment: some number of workers, here or on other machines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from gradleak.experiments.runner.cell import Ends, Group, Work
from gradleak.experiments.runner.worker import Death


@dataclass(frozen=True)
class State:
    """What one worker is at: a cell, or the first of a group."""

    cell: str
    what: str
    share: float


class Crew(Protocol):
    """Takes groups of cells while it has room, and tells how they ended."""

    @property
    def room(self) -> int:
        """How many more groups it would take now."""
        ...

    @property
    def busy(self) -> int:
        """How many groups it is at."""
        ...

    def start(self, work: Work) -> None:
        """Begin a group; there must be room. Its trials are passed on to the work's `keep` as they are finished."""
        ...

    def wait(self, seconds: float) -> list[tuple[Group, Ends | Death]]:
        """The groups that ended; waits so long for the first of them."""
        ...

    def states(self) -> list[State]:
        """What every busy worker is at."""
        ...

    def close(self) -> None:
        """Stop all work at once."""
        ...
