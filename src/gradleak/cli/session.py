"""What commands share while they run: the budget, the live progress, Ctrl-C, and how results are shown."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from gradleak.audits.results import Results
    from gradleak.audits.spec import AuditConfig
    from gradleak.core.budget import Budget
    from gradleak.verdict.gather import Gathered


def said(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def budget_of(config: AuditConfig) -> Budget:
    from gradleak.core.budget import Budget

    return Budget(config.seconds)


@contextmanager
def live(budget: Budget) -> Iterator[Any]:
    """A live bar; the first Ctrl-C asks the attack to stop and keep what it has, the second stops at once."""
    from gradleak.report.terminal import LiveProgress

    def stop(number: int, frame: FrameType | None) -> None:
        budget.interrupt()
        signal.signal(signal.SIGINT, previous)

    previous = signal.signal(signal.SIGINT, stop)
    try:
        with LiveProgress() as progress:
            yield progress
    finally:
        signal.signal(signal.SIGINT, previous)


def finish(budget: Budget) -> None:
    if budget.interrupted:
        raise typer.Exit(130)


def show(found: Gathered) -> None:
    """Print a single audit in full and of several the verdict; write `verdict.json` and the page."""
    from rich.console import Console

    from gradleak.report.build import write_pages
    from gradleak.report.terminal import print_results
    from gradleak.verdict.show import print_verdict

    console, verdict = Console(), found.verdict
    if len(found.results) == 1:
        print_results(found.results[0], console, sentences=20)
    print_verdict(verdict, console)
    typer.echo(f"\nverdict  {verdict.save(found.folder)}\nreport   {write_pages(found)}")


def masked(results: Results, wanted: bool) -> Results:
    from gradleak.audits.redact import redact

    return redact(results) if wanted else results
