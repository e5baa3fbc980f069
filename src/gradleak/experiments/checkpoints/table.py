"""Checkpoints as a table: the same lines in the terminal and on the page."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.table import Table

from gradleak.core.console import SafeConsole
from gradleak.experiments.checkpoints.result import CAVEAT, Checkpoint, Checkpoints, headline
from gradleak.scoring.interval import Interval

OPEN = "–"


def checkpoint_table(result: Checkpoints) -> tuple[list[str], list[list[str]]]:
    """Headings and lines, one line per checkpoint."""
    learned = list(dict.fromkeys(name for point in result.points for name in point.learned))
    headings = ["step", *learned, result.label, "control", "change since the first"]
    return headings, [_line(point, learned) for point in result.points]


def _line(point: Checkpoint, learned: list[str]) -> list[str]:
    figures = [f"{point.learned[name]:.3g}" if name in point.learned else OPEN for name in learned]
    return [str(point.step), *figures, *(_text(value) for value in (point.leak, point.control, point.change))]


def _text(interval: Interval | None) -> str:
    return OPEN if interval is None else str(interval)


def print_checkpoints(result: Checkpoints, console: SafeConsole) -> None:
    """The table, the sentence that sums it up, and what it does not mean."""
    headings, lines = checkpoint_table(result)
    table = Table(
        title=f"{result.label} of {result.spec.attack} on updates at several steps of training, 95 % intervals",
        title_justify="left",
        box=SIMPLE_HEAD,
    )
    for heading in headings:
        table.add_column(heading, justify="right")
    for line in lines:
        table.add_row(*line)
    console.print(table)
    if result.status != "completed":
        console.print("Not all is measured yet; run the same command again to continue.", style="bold yellow")
    console.print(headline(result), style="bold")
    console.print(CAVEAT, style="dim")
