"""Commands that train: finetune, and train-inverter for the attack lti."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from gradleak.cli.app import app
from gradleak.cli.options import takes
from gradleak.cli.session import drop_unset, finish, live
from gradleak.core.output import say


@app.command()
@takes("loading", names=("text_column", "label_column", "chat_template", "budget"), without=("lora",))
def finetune(
    given: dict[str, Any],
    data: Annotated[
        str, typer.Option(help="A .txt, .csv, .tsv or .jsonl file (a classifier needs labels), or builtin.")
    ],
    out: Annotated[Path, typer.Option(help="Folder for the model; run again with it to continue after a stop.")],
    model: Annotated[str | None, typer.Option(help="Default: minilm, or smollm2 for --task lm.")] = None,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the data.")] = 2,
    lr: Annotated[
        float | None,
        typer.Option(min=0.0, help="Largest step size of AdamW; it decays linearly to zero. Default: 5e-5, lm 1e-5."),
    ] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Sentences of a step. Default: 32, lm 16.")] = None,
    checkpoints: Annotated[
        int, typer.Option(min=0, help="At how many points before the end the model is kept too, the start first.")
    ] = 0,
    seed: Annotated[int, typer.Option(help="Fixes the split, the order and dropout.")] = 0,
) -> None:
    """Fine-tune a classifier or language model and write it as a Hugging Face folder that audits take by its path."""
    from gradleak.audits.spec import load_spec
    from gradleak.data.chat import rendered
    from gradleak.data.corpora import read_rows
    from gradleak.models.load import load_text_model
    from gradleak.training.finetune import FinetuneSettings, default_model, print_finetuned
    from gradleak.training.finetune import finetune as train

    spec = load_spec(None, given | {"data": data})
    limit = spec.time_limit()

    def work(progress: Any) -> Any:
        progress.begin("reading data", 0)
        rows = read_rows(data, spec.text_column, spec.label_column)
        target = load_text_model(
            model or default_model(spec.task), task=spec.task, num_labels=spec.num_labels, family=spec.family,
            device=spec.device, progress=progress,
        )  # fmt: skip
        rows = rendered(rows, target, spec.chat_template, completions=False)
        settings = FinetuneSettings.usual(
            target.task, epochs=epochs, lr=lr, batch_size=batch_size, checkpoints=checkpoints, seed=seed
        )
        return train(target, rows, out, settings, limit, progress)

    status, figures = live(limit, work)
    print_finetuned(status, figures, out)
    finish(limit)


@app.command("train-inverter")
@takes("loading", names=("defenses", "budget"))
def train_inverter(
    given: dict[str, Any],
    out: Annotated[Path, typer.Option(help="Folder for the inverter; run again with it to continue after a stop.")],
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
    from gradleak.attacks.inversion.train_text import train_inverter as train
    from gradleak.attacks.inversion.train_text import usual_network
    from gradleak.attacks.inversion.training import TrainSettings
    from gradleak.audits.spec import load_spec
    from gradleak.core.parameters import validated
    from gradleak.models.load import load_text_model

    spec = load_spec(None, given)
    limit = spec.time_limit()
    settings = validated(TrainSettings, drop_unset(steps=steps, batch=batch, lr=lr, seed=seed), "training")

    def work(progress: Any) -> Any:
        target = load_text_model(
            model, task=spec.task, num_labels=spec.num_labels, lora=spec.lora, family=spec.family,
            device=spec.device, progress=progress,
        )  # fmt: skip
        return train(
            target, out, aux=aux, pseudo=pseudo, size=size, other=other or (), share=share, defenses=spec.defenses,
            network=usual_network(target, features=features, share=hash_share, length=length),
            settings=settings, budget=limit, progress=progress,
        )  # fmt: skip

    manifest, accuracy = live(limit, work)
    training = manifest.training
    if training.status != "completed":
        say(f"stopped at step {training.step} of {settings.steps}; run the same command to continue")
    say(
        f"{100 * accuracy:.1f} % of held-out tokens, loss {training.best_loss:.3f} at step {training.best_step}, "
        f"{training.seconds:.0f} s of training",
        f"inverter  {out}",
    )
    finish(limit)
