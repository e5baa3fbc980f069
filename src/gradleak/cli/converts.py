"""The command that brings updates of other training in: convert."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from gradleak.cli.app import app
from gradleak.cli.options import takes
from gradleak.core.errors import GradleakError
from gradleak.core.output import say

UNSAID = (
    "dropout is taken to have been off: this model has some, and it is on wherever training calls model.train(), as "
    "Trainer does; if it was on, convert again with --dropout"
)
ADAMS = (
    "the weights moved as Adam moves them, nearly all by about the step size, and the rule says SGD; if Adam did it, "
    "convert again with --optimizer adamw, or with the whole rule as --client"
)
WEIGHTS = ".safetensors or .pt file, a model's folder, or an adapter's"


@app.command()
@takes("model", "loading")
def convert(
    given: dict[str, Any],
    out: Annotated[Path, typer.Option(help="The update folder to write.")],
    before: Annotated[
        Path | None, typer.Option(help=f"Weights before training: a {WEIGHTS}; default: the model's own.")
    ] = None,
    after: Annotated[Path | None, typer.Option(help="Weights after training, in any of these forms.")] = None,
    gradient: Annotated[Path | None, typer.Option(help="Instead of weights: a gradient of the mean loss.")] = None,
    client: Annotated[
        str | None,
        typer.Option(help="How the client trained: adamw:lr=2e-4,steps=10,batch=16, flowertune, ..."),
    ] = None,
    lr: Annotated[float | None, typer.Option(help="Or setting by setting: the step size.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Steps of the optimiser.")] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Instead of steps: passes over the sentences.")] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Sentences in a mini-batch; default: all.")] = None,
    accumulate: Annotated[int | None, typer.Option(min=1, help="Mini-batches that make a step.")] = None,
    clip: Annotated[float | None, typer.Option(min=0.0, help="Norm that gradients were clipped to; 0: none.")] = None,
    optimizer: Annotated[
        str | None, typer.Option(help="sgd, adam or adamw; another is noted as rough; default: sgd.")
    ] = None,
    weight_decay: Annotated[float | None, typer.Option(min=0.0, help="Its weight decay.")] = None,
    schedule: Annotated[str | None, typer.Option(help="Of the step size: constant, linear or cosine.")] = None,
    dropout: Annotated[bool, typer.Option("--dropout", help="Dropout was on.")] = False,
    batch_size: Annotated[
        int | None,
        typer.Option("--batch-size", "--sentences", min=1, help="Sentences trained on, if the attacker is to know."),
    ] = None,
) -> None:
    """Make an update folder from files of your own training: weights before and after it, or a gradient."""
    from gradleak.audits.run import load_target
    from gradleak.audits.spec import load_spec
    from gradleak.models.text import text_target
    from gradleak.report.live import LiveProgress
    from gradleak.updates.convert import Converted, convert_gradient, convert_weights, has_dropout
    from gradleak.updates.rule_options import RuleOptions, gradient_rule

    if (after is None) == (gradient is None) or (gradient is not None and before is not None):
        raise GradleakError(
            "give either --after, and --before unless it began with the model's weights, or --gradient"
        )
    settings = {
        "lr": lr, "steps": steps, "epochs": epochs, "batch": batch, "accumulate": accumulate, "clip": clip,
        "optimizer": optimizer, "wd": weight_decay, "schedule": schedule, "mode": "train" if dropout else None,
    }  # fmt: skip
    options = RuleOptions(client, settings, batch_size)
    sent = gradient_rule(options) if gradient is not None else None
    spec = load_spec(None, given)
    done: Converted | None = None
    with LiveProgress() as progress:
        model = text_target(load_target(spec, progress), "convert")
        if gradient is not None:
            folder = convert_gradient(model, gradient, out, rule=sent, batch_size=batch_size, progress=progress)
            rule, may_drop = sent, has_dropout(model)
        else:
            assert after is not None
            done = convert_weights(model, before, after, out, options, progress=progress)
            folder, rule, may_drop = done.update, done.rule, done.dropout
        model.announce(progress)
    say(f"update  {folder}")
    if done is not None:
        for line in done.read:
            say(f"read    {line.removeprefix('read from ')}")
        say(f"rule    {done.rule}")
    if done is not None and done.like_adam:
        say(f"note    {ADAMS}")
    if may_drop and rule is not None and rule.mode == "eval" and "mode=" not in (client or ""):
        say(f"note    {UNSAID}")
    if done is not None and done.model is not None:
        say(f"model   {done.model} (the weights before, which are not those of {spec.model})")
