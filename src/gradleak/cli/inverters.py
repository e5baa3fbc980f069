"""The command that trains what the attack `lti` reads updates with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from gradleak.cli.app import app
from gradleak.cli.options import LOADING, BudgetText, Defenses, takes
from gradleak.cli.session import budget_of, finish, live, said


@app.command("train-inverter")
@takes(LOADING, defenses=Defenses, budget=BudgetText)
def train_inverter(
    given: dict[str, Any],
    out: Annotated[Path, typer.Option(help="Folder for the inverter; run again with it to go on after a stop.")],
    model: Annotated[str, typer.Option(help="The target: built-in name, Hugging Face folder or hub id.")] = "lti",
    aux: Annotated[str, typer.Option(help="Texts like the victims': a data file, or wikitext2.")] = "wikitext2",
    pseudo: Annotated[
        bool, typer.Option(help="Use only how often each token occurs in them (LTI-P), or the texts (LTI).")
    ] = True,
    size: Annotated[int | None, typer.Option(min=2, help="Sequences of auxiliary text; default: all.")] = None,
    other: Annotated[str | None, typer.Option(help="Another corpus to mix in; needs --size and --share.")] = None,
    share: Annotated[float, typer.Option(min=0.0, max=1.0, help="Share of --aux in that mixture.")] = 1.0,
    features: Annotated[
        str | None, typer.Option(help="structured or hashed; default: the better one for the target.")
    ] = None,
    hash_share: Annotated[
        float | None,
        typer.Option(help="Bins of hashed features as a share of the coordinates; default: 0.1, or less."),
    ] = None,
    length: Annotated[int, typer.Option(min=2, help="Tokens of a sequence, special ones counted.")] = 16,
    steps: Annotated[int | None, typer.Option(min=1, help="Training steps. Default: 300.")] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Sequences of a step. Default: 32.")] = None,
    lr: Annotated[float | None, typer.Option(help="Largest step size of Adam. Default: 0.001.")] = None,
    seed: Annotated[int, typer.Option(help="Fixes all randomness.")] = 0,
) -> None:
    """Train a network that reads text off updates of one model under one defence, for the attack lti."""
    from gradleak.attacks.inversion.run import train_inverter as train
    from gradleak.attacks.inversion.run import usual_network
    from gradleak.attacks.inversion.training import TrainSettings
    from gradleak.audits.spec import load_config
    from gradleak.core.parameters import validated
    from gradleak.models.load import load_text_model

    config = load_config(None, given)
    limit = budget_of(config)
    settings = validated(TrainSettings, said(steps=steps, batch=batch, lr=lr, seed=seed), "training")
    with live(limit) as progress:
        target = load_text_model(
            model, task=config.task, num_labels=config.num_labels, device=config.device, progress=progress
        )
        manifest, accuracy = train(
            target, out, aux=aux, pseudo=pseudo, size=size, other=other or (), share=share, defenses=config.defenses,
            network=usual_network(target, features=features, share=hash_share, length=length),
            settings=settings, budget=limit, progress=progress,
        )  # fmt: skip
    training = manifest.training
    if training.status != "completed":
        typer.echo(f"stopped at step {training.step} of {settings.steps}; run the same command to go on")
    typer.echo(
        f"{100 * accuracy:.1f} % of held-out tokens, loss {training.best_loss:.3f} at step {training.best_step}, "
        f"{training.seconds:.0f} s of training\ninverter  {out}"
    )
    finish(limit)
