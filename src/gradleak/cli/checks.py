"""Commands about promises: dp-check, and ceiling."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from gradleak.cli.app import app
from gradleak.cli.boundary import FOUND
from gradleak.cli.options import takes
from gradleak.cli.session import finish, live
from gradleak.core.output import say


@app.command("dp-check")
@takes(
    "model", "data", "loading", names=("batch_size", "client", "defenses", "seed", "budget", "memory", "out"),
    helps={
        "out": "Folder for dp-check.json; default: one of its own.",
        "seed": "Fixes which texts are taken and which of them is in which update; default: 0.",
        "defenses": "What the client does, with its promise, such as dpsgd:noise=1.0,clip=1.0, or your own.",
    },
)  # fmt: skip
def dp_check(
    given: dict[str, Any],
    noise: Annotated[
        float | None, typer.Option(min=0.0, help="The noise multiplier promised, if the defences do not say it.")
    ] = None,
    among: Annotated[
        int,
        typer.Option(min=2, max=1000, help="How many texts may be the one in question."),
    ] = 2,
    updates: Annotated[int, typer.Option(min=32, help="Updates to make; more show smaller mistakes.")] = 400,
    recorded: Annotated[
        Path | None,
        typer.Option(help="Check recorded updates instead: a .csv with columns update, text and, if any, label."),
    ] = None,
    one_run: Annotated[
        bool, typer.Option("--one-run", help="Check one whole training, with examples in it by the throw of a coin.")
    ] = False,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of that training.")] = 10,
    examples: Annotated[int, typer.Option(min=8, help="Examples that coins are thrown for.")] = 128,
) -> None:
    """Check whether an implementation of differential privacy keeps what it promises; exit code 3 if it does not."""
    from gradleak.audits.spec import load_spec
    from gradleak.cli.audits import results_folder

    spec = load_spec(None, {**given, "attack": "dp-check"})
    limit = spec.time_limit()

    def work(progress: Any) -> Any:
        from gradleak.audits.dp.sources import check_client, check_recorded
        from gradleak.audits.dp.training import check_training

        if recorded is not None:
            return check_recorded(recorded, spec, noise, limit, progress)
        if one_run:
            return check_training(spec, noise, examples, rounds, limit, progress)
        return check_client(spec, noise, among, updates, limit, progress)

    with results_folder(spec) as folder:
        found = live(limit, work)
        place = found.save(folder)
        say(*found.lines(), f"results  {place}")
    finish(limit)
    if found.broken:
        raise typer.Exit(FOUND)


@app.command()
def ceiling(
    noise: Annotated[float, typer.Option(min=0.0, help="Noise multiplier of DP-SGD.")],
    steps: Annotated[int, typer.Option(min=1, help="Steps that the attacker sees, or that the training has.")] = 1,
    rate: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Share of the rows in a step; 1 if it is known to be in.")
    ] = 1.0,
    guess: Annotated[
        list[float] | None,
        typer.Option(min=0.0, max=1.0, help="Chance of the best guess without updates; repeat for more."),
    ] = None,
) -> None:
    """Print how often any attack can succeed at most against DP-SGD, by how well one can guess without it."""
    from rich.table import Table

    from gradleak.core.console import SafeConsole
    from gradleak.defenses.ceiling import GUESSES, VACUOUS, ceilings

    guesses = tuple(guess or GUESSES)
    table = Table(title=f"Ceiling: noise multiplier {noise:g}, {steps} steps, rate {rate:g}", title_justify="left")
    for heading in ("best guess without updates", "any attack, at most"):
        table.add_column(heading, justify="right")
    for chance, success in zip(guesses, ceilings(noise, rate, steps, guesses), strict=True):
        table.add_row(f"{chance:g}", f"{success:.3g}{' (excludes next to nothing)' if success > VACUOUS else ''}")
    SafeConsole().print(table)
