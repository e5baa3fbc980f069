"""Commands around one audit: demo, audit, capture, attack, score."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gradleak.cli.app import app
from gradleak.cli.options import (
    ATTACK,
    AUDIT,
    CLIENT,
    DATA,
    DRAWING,
    LOADING,
    AuxiliaryData,
    Entities,
    LpipsFlag,
    Model,
    Observe,
    Redact,
    Seed,
    takes,
)
from gradleak.cli.session import budget_of, finish, live, masked, said, show

if TYPE_CHECKING:
    from gradleak.audits.spec import AuditConfig


@app.command()
def demo(
    out: Annotated[str, typer.Option(help="Folder for the results.")] = "gradleak-demo",
    seed: Annotated[int, typer.Option(help="Another seed takes other sentences.")] = 3,
) -> None:
    """Show a leak: twelve invented private sentences, read back whole from three of MiniLM's updates."""
    from gradleak.audits.spec import AuditConfig

    typer.echo("Three clients each train MiniLM on four private sentences and share only the gradient.")
    typer.echo("The attack sees that gradient and the public model. It never sees the sentences.\n")
    run_and_show(AuditConfig(trials=3, batch_size=4, seed=seed, out=out))


@app.command()
@takes(AUDIT, observe=Observe, entities=Entities)
def audit(
    given: dict[str, Any],
    config: Annotated[Path | None, typer.Argument(help="An audit.yaml; flags override it.")] = None,
    out: Annotated[str | None, typer.Option(help="Folder for results.json and report.html.")] = None,
    redact: Redact = False,
    lpips: LpipsFlag = False,
) -> None:
    """Audit a model: make updates from your data, attack them, score what was read back, write a report."""
    from gradleak.audits.spec import load_config

    run_and_show(load_config(config, given | said(out=out, redact=redact or None)), lpips)


@app.command()
@takes(DATA | CLIENT | LOADING | DRAWING, observe=Observe)
def capture(given: dict[str, Any], out: Annotated[Path, typer.Option(help="The update folder to write.")]) -> None:
    """Make one client's update and write it as a folder; the truth goes into a file of its own beside it."""
    from gradleak.audits.configured import capture_of
    from gradleak.audits.spec import load_config
    from gradleak.report.terminal import LiveProgress

    with LiveProgress() as progress:
        folder, truth = capture_of(load_config(None, given), out, progress)
    typer.echo(f"update  {folder}\ntruth   {truth}")


@app.command()
@takes(ATTACK | LOADING, model=Model, seed=Seed, data=AuxiliaryData)
def attack(
    given: dict[str, Any],
    update: Annotated[Path, typer.Argument(help="An update folder.")],
    out: Annotated[Path | None, typer.Option(help="Folder for reconstruction.json.")] = None,
) -> None:
    """Read text or images back from an update folder. No truth is needed and none is looked at."""
    from gradleak.audits.configured import attack_of
    from gradleak.audits.reconstruct import print_reconstruction
    from gradleak.audits.spec import load_config

    settings = load_config(None, given)
    limit = budget_of(settings)
    with live(limit) as progress:
        found, written = attack_of(update, settings, out, limit, progress)
    print_reconstruction(found)
    if written:
        typer.echo(f"reconstruction  {written}")
    finish(limit)


@app.command()
def score(
    reconstruction: Annotated[Path, typer.Argument(help="A reconstruction.json.")],
    truth: Annotated[Path, typer.Argument(help="The truth file that `capture` wrote.")],
    model: Model = None,
    entities: Entities = None,
) -> None:
    """Compare a reconstruction with the truth."""
    from gradleak.audits.configured import print_score_of

    print_score_of(reconstruction, truth, model or "minilm", bool(entities))


def run_and_show(config: AuditConfig, lpips: bool = False) -> None:
    from datetime import datetime

    from gradleak.audits.configured import audit_of
    from gradleak.core.files import output_folder
    from gradleak.verdict.gather import Gathered

    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    chosen = config.out or Path("gradleak-runs") / f"{stamp}-{config.attack}"
    limit = budget_of(config)
    with output_folder(chosen) as folder:
        with live(limit) as progress:
            results = masked(audit_of(config, limit, progress, lpips), config.redact)
        place = results.save(folder)
        show(Gathered(folder, [results]))
        typer.echo(f"results  {place}")
    finish(limit)
