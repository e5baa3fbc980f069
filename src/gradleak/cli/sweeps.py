"""The command that runs many audits on many workers: sweep."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gradleak.cli.app import app
from gradleak.cli.session import budget_of, finish, live, said

if TYPE_CHECKING:
    from gradleak.experiments.crews.base import Crew
    from gradleak.experiments.sweep.plan import SweepConfig

EXECUTORS = ("local", "ray", "inline")
# Cells that --dry-run lists by name.
SHOWN = 30


@app.command()
def sweep(
    config: Annotated[Path, typer.Argument(help="A sweep.yaml: models, data, batch sizes, defences, attacks, ...")],
    out: Annotated[str | None, typer.Option(help="Folder for the cells; finished ones are kept.")] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes, or Ray actors; default: as many as have cores.")
    ] = None,
    executor: Annotated[
        str, typer.Option(help="local; ray: the same cells on a Ray cluster; inline: in this process, to debug.")
    ] = "local",
    address: Annotated[str | None, typer.Option(help="Of the Ray cluster; default: one on this machine.")] = None,
    gpus: Annotated[float, typer.Option(min=0.0, help="Share of a GPU that a Ray actor takes, such as 0.25.")] = 0.0,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Run failed cells once more.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan and its cost; run nothing.")] = False,
    budget: Annotated[str | None, typer.Option(help="Stop the sweep after 60s, 5m, 1h; run again to go on.")] = None,
) -> None:
    """Audit every combination of models, data, batches, defences and attacks; run again to go on after a stop."""
    from rich.console import Console

    from gradleak.audits.spec import AuditConfig
    from gradleak.core.errors import GradleakError
    from gradleak.core.registry import suggest
    from gradleak.experiments.sweep.plan import load_sweep
    from gradleak.experiments.sweep.run import sweep as run
    from gradleak.experiments.sweep.table import CSV_FILE, print_table

    if executor not in EXECUTORS:
        raise GradleakError(f"unknown executor {executor!r}; {suggest(executor, EXECUTORS)}")
    settings = load_sweep(config, said(out=out))
    settings = settings.model_copy(update={"out": settings.out or f"gradleak-runs/sweep-{config.stem}"})
    if dry_run:
        _show_plan(settings, workers, retry_failed)
        return
    limit = budget_of(AuditConfig(budget=budget))
    with live(limit) as progress:
        result = run(
            settings,
            workers=workers,
            crew=_crew(executor, settings, workers, address, gpus),
            retry_failed=retry_failed,
            budget=limit,
            progress=progress,
        )
    print_table(result.lines, Console())
    typer.echo(", ".join(f"{count} {status}" for status, count in sorted(result.statuses.items())))
    typer.echo(f"table  {result.folder / CSV_FILE}\ncells  {result.folder / 'cells'}")
    typer.echo(f"what it means: gradleak verdict {result.folder}; with a page: gradleak report {result.folder}")
    finish(limit)
    if set(result.statuses) & {"failed", "not run"}:
        raise typer.Exit(1)


def _crew(executor: str, config: SweepConfig, workers: int | None, address: str | None, gpus: float) -> Crew | None:
    """None stands for the usual: processes of this machine."""
    if executor == "local":
        return None
    if executor == "inline":
        from gradleak.experiments.crews.inline import InlineCrew

        return InlineCrew(config.threads)
    from gradleak.experiments.crews.ray import RayCrew

    return RayCrew(config.threads, config.limits, device=config.device, workers=workers, address=address, gpus=gpus)


def _show_plan(config: SweepConfig, workers: int | None, retry_failed: bool) -> None:
    from gradleak.experiments.crews.local import workers_that_fit
    from gradleak.experiments.runner.estimate import in_words
    from gradleak.experiments.sweep.plan import describe
    from gradleak.experiments.sweep.run import preview
    from gradleak.report.terminal import LiveProgress

    with LiveProgress() as progress:
        found = preview(config, retry_failed=retry_failed, progress=progress)
    for number, cell in enumerate(found.todo):
        if number == SHOWN:
            typer.echo(f"  ... and {len(found.todo) - SHOWN} more")
            break
        typer.echo(f"  {describe(cell.settings)}")
    done = ", ".join(f"{count} {status}" for status, count in sorted(found.statuses.items())) or "none yet"
    count = workers if workers is not None else workers_that_fit(config.threads)
    groups = f" in {found.groups} groups" if found.groups < len(found.todo) else ""
    typer.echo(f"{found.cells} cells; finished: {done}; to run: {len(found.todo)}{groups}")
    typer.echo(f"cost: {in_words(found.estimate, len(found.todo), count, config.limits)}")
