"""The command that brings updates of other training in: convert."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from gradleak.cli.app import app
from gradleak.cli.options import takes
from gradleak.core.errors import GradleakError
from gradleak.core.output import say


@app.command()
@takes("model", "loading")
def convert(
    given: dict[str, Any],
    out: Annotated[Path, typer.Option(help="The update folder to write.")],
    before: Annotated[Path | None, typer.Option(help="Weights before training: .safetensors or .pt.")] = None,
    after: Annotated[Path | None, typer.Option(help="Weights after training.")] = None,
    lr: Annotated[float | None, typer.Option(help="Step size of the training between them.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Its number of steps.")] = None,
    gradient: Annotated[Path | None, typer.Option(help="Instead of weights: a gradient of the mean loss.")] = None,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Sentences trained on, if the attacker is to know.")
    ] = None,
    optimizer: Annotated[str, typer.Option(help="What took the steps; other than sgd is noted as rough.")] = "sgd",
    dropout: Annotated[bool, typer.Option("--dropout", help="Dropout was on.")] = False,
) -> None:
    """Make an update folder from files of your own training: weights before and after it, or a gradient."""
    from gradleak.audits.spec import load_spec
    from gradleak.models.load import load_text_model
    from gradleak.report.live import LiveProgress
    from gradleak.updates.convert import convert_gradient, convert_weights
    from gradleak.updates.integrations.recording import optimizer_note

    weights = [value for value in (before, after, lr, steps) if value is not None]
    if len(weights) != (4 if gradient is None else 0):
        raise GradleakError("give either --before and --after, with --lr and --steps, or --gradient")
    if not re.fullmatch(r"[\w.+-]{1,60}", optimizer):
        raise GradleakError(f"{optimizer[:60]!r} is no optimizer's name: use letters, digits, '_', '-', '+' and '.'")
    notes = optimizer_note(optimizer)
    spec = load_spec(None, given)
    training: dict[str, Any] = {"batch_size": batch_size, "mode": "train" if dropout else "eval"}
    new: Path | None = None
    with LiveProgress() as progress:
        model = load_text_model(
            spec.model, task=spec.task, num_labels=spec.num_labels, device=spec.device, progress=progress
        )
        if gradient is not None:
            folder = convert_gradient(model, gradient, out, **training, progress=progress)
        else:
            training |= {"lr": lr, "steps": steps, "notes": notes}
            files = cast(Path, before), cast(Path, after)
            folder, new = convert_weights(model, *files, out, **training, progress=progress)
        model.announce(progress)
    say(f"update  {folder}")
    if new is not None:
        say(f"model   {new} (the weights before, which are not those of {spec.model})")
