"""What commands share while they run: the live progress, Ctrl-C, experiments, and how results are shown."""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Callable
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
Result = TypeVar("Result")

# Cells that --dry-run lists by name.
SHOWN = 30
# The exit code of a command that Ctrl-C ended.
INTERRUPTED = 130
# What work as a whole may take after its budget is over, to hand back and score what it has: seconds, and a share of
# the budget. The attack in it is ended sooner.
OVERTIME_SECONDS, OVERTIME_SHARE = 3.7, 0.1
# Seconds from then until it is left to itself.
LAST = 0.6


def drop_unset(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def live(budget: Budget, work: Callable[[Any], Result]) -> Result:
    """What the work gives, which gets a progress to show itself in; it ends with its budget, or soon after.

    The first Ctrl-C asks it to stop and keep what it has, the second ends the process at once.
    """
    from gradleak.core.budget import Stopped
    from gradleak.core.errors import GradleakError
    from gradleak.core.supervision import supervised
    from gradleak.report.live import LiveProgress

    def stop(number: int, frame: FrameType | None) -> None:
        if budget.interrupted:
            os._exit(INTERRUPTED)
        budget.interrupt()
        progress.notice("stopping; what was found so far is kept. Ctrl-C again ends at once.")

    previous = signal.signal(signal.SIGINT, stop)
    try:
        with LiveProgress(budget=budget) as progress:
            overtime = OVERTIME_SECONDS + OVERTIME_SHARE * (budget.seconds or 0.0)
            return supervised(functools.partial(work, progress), budget, grace=overtime, patience=overtime + LAST)
    except Stopped:
        end = "Ctrl-C" if budget.interrupted else f"the budget of {budget.seconds:g} s"
        raise GradleakError(f"{end} came before anything could be kept") from None
    finally:
        signal.signal(signal.SIGINT, previous)


def finish(budget: Budget) -> None:
    if budget.interrupted:
        raise typer.Exit(INTERRUPTED)


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
    show(
        live(
            limit,
            lambda progress: run_experiment(experiment, folder, options=chosen, budget=limit, progress=progress),
        )
    )
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
