"""What runs cells for a sweep: some number of workers, here or on other machines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from gradleak.runner.cell import Cell, Limits, SweepCell
from gradleak.runner.worker import Death


@dataclass(frozen=True)
class State:
    """What one worker is at."""

    cell: str
    what: str
    share: float


class Crew(Protocol):
    """Takes cells while it has room, and tells how they ended."""

    @property
    def room(self) -> int:
        """How many more cells it would take now."""
        ...

    @property
    def busy(self) -> int:
        """How many cells it is at."""
        ...

    def start(self, cell: Cell, limits: Limits) -> None:
        """Begin a cell; there must be room."""
        ...

    def wait(self, seconds: float) -> list[tuple[Cell, SweepCell | Death]]:
        """The cells that ended; waits so long for the first of them."""
        ...

    def states(self) -> list[State]:
        """What every busy worker is at."""
        ...

    def close(self) -> None:
        """Stop all work at once."""
        ...
