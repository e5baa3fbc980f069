"""What commands share while they run: the live progress, Ctrl-C, experiments, and how results are shown."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from gradleak.core.output import say

if TYPE_CHECKING:
    from gradleak.cli.options import RunFlags
    from gradleak.core.budget import Budget
    from gradleak.experiments.experiment import Experiment

Summary = TypeVar("Summary")

# Cells that --dry-run lists by name.
SHOWN = 30


def drop_unset(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


@contextmanager
def live(budget: Budget) -> Iterator[Any]:
    """A live bar; the first Ctrl-C asks the attack to stop and keep what it has, the second stops at once."""
    from gradleak.report.live import LiveProgress

    def stop(number: int, frame: FrameType | None) -> None:
        budget.interrupt()
        signal.signal(signal.SIGINT, previous)

    previous = signal.signal(signal.SIGINT, stop)
    try:
        with LiveProgress(budget=budget) as progress:
            yield progress
    finally:
        signal.signal(signal.SIGINT, previous)


def finish(budget: Budget) -> None:
    if budget.interrupted:
        raise typer.Exit(130)


def perform(
    experiment: Experiment[Any, Summary],
    folder: Path,
    flags: RunFlags,
    budget: str | None,
    show: Callable[[Summary], None],
    **options: Any,
) -> None:
    """Run an experiment and show what it came to, or with --dry-run only its plan."""
    from gradleak.core.budget import Budget
    from gradleak.experiments.experiment import run_experiment
    from gradleak.experiments.runner.store import read_cells

    chosen = flags.options(experiment.audit.device, **options)
    if flags.dry_run:
        _show_plan(experiment, folder, chosen)
        return
    limit = Budget.of(budget)
    with live(limit) as progress:
        result = run_experiment(experiment, folder, options=chosen, budget=limit, progress=progress)
    show(result)
    finish(limit)
    failed = [cell for cell in read_cells(folder) if cell.status == "failed"]
    if failed:
        say(f"{len(failed)} cells failed, the first: {failed[0].id}: {failed[0].error}", err=True)
        raise typer.Exit(1)


def _show_plan(experiment: Experiment[Any, Any], folder: Path, options: Any) -> None:
    from gradleak.experiments.crews.local import workers_that_fit
    from gradleak.experiments.experiment import preview
    from gradleak.experiments.runner.estimate import in_words
    from gradleak.report.live import LiveProgress

    with LiveProgress() as progress:
        plan = preview(experiment, folder, options=options, progress=progress)
    for cell in plan.todo[:SHOWN]:
        say(f"  {cell.job}")
    if len(plan.todo) > SHOWN:
        say(f"  ... and {len(plan.todo) - SHOWN} more")
    done = ", ".join(f"{count} {status}" for status, count in sorted(plan.statuses.items())) or "none yet"
    count = options.workers if options.workers is not None else workers_that_fit(options.threads)
    groups = f" in {plan.groups} groups" if plan.groups < len(plan.todo) else ""
    say(f"{plan.cells} cells; finished: {done}; to run: {len(plan.todo)}{groups}")
    say(f"cost: {in_words(plan.estimate, len(plan.todo), count, options.limits)}")
