"""Fine-tuning a classifier or a language model, so that audits can look at updates of a model that has learned.

The run can be stopped at any time: its state is written now and then, and the same command continues from there.
"""

from __future__ import annotations

import hashlib
import json
import random
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

import torch
from pydantic import BaseModel, ConfigDict, Field

from gradleak.core.budget import Budget
from gradleak.core.errors import GradleakError
from gradleak.core.files import fill_state, output_folder, replacing
from gradleak.core.output import say
from gradleak.core.progress import SILENT, Progress
from gradleak.core.text import enumerated
from gradleak.data.texts import Row
from gradleak.models.families import Task
from gradleak.models.load import BUILT_IN, save_model
from gradleak.models.tasks import text_task, text_tasks
from gradleak.models.tasks.classification import class_number
from gradleak.models.text import TextModel
from gradleak.training.checkpoints import METRICS_FILE, checkpoint_folder, kept_checkpoints, kept_steps
from gradleak.training.classes import classification_metrics
from gradleak.training.perplexity import perplexity

STATE_FILE = "training.pt"
SAVE_SECONDS = 60.0
CLIP = 1.0

# The usual recipe of fine-tuning BERT, and the FILM paper's for language models.
OF_BERT, OF_LANGUAGE_MODELS = {"lr": 5e-5, "batch_size": 32}, {"lr": 1e-5, "batch_size": 16}

# Tokens of a text and its class; language models predict the tokens themselves.
Example = tuple[list[int], int | None]


class FinetuneSettings(BaseModel):
    """How a model is trained; `usual` fills in what is right for a task."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    epochs: int = 2
    lr: float
    batch_size: int
    held_out: float = 0.1
    max_tokens: int = 128
    checkpoints: int = Field(0, ge=0, description="points before the end at which the model is kept, the start first")
    seed: int = 0

    @classmethod
    def usual(cls, task: Task, **given: Any) -> Self:
        """The settings of a task; what is given and not None takes their place.

        >>> FinetuneSettings.usual("causal-lm", epochs=1, batch_size=None).lr
        1e-05
        """
        recipe: dict[str, Any] = OF_LANGUAGE_MODELS if text_task(task).autoregressive else OF_BERT
        return cls(**recipe | {name: value for name, value in given.items() if value is not None})


def finetune(
    model: TextModel,
    rows: Sequence[Row],
    out: Path,
    settings: FinetuneSettings,
    budget: Budget,
    progress: Progress = SILENT,
) -> tuple[Literal["completed", "stopped"], dict[str, Any]]:
    """Train with AdamW and a linear decay, then write a Hugging Face folder with `metrics.json` in it.

    Checkpoints are folders of the same form inside it, measured on the same held-out rows.
    """
    train, test = split_rows(rows, model, settings)
    data = hashlib.sha256(repr((train, test)).encode()).hexdigest()[:16]
    identity = f"{model.fingerprint} {settings.model_dump_json()} {data}"
    metrics: dict[str, Any] = {}
    with output_folder(out) as folder:
        run = _Run(model, train, settings, folder, identity)
        model.announce(progress)
        for step in (*kept_steps(run.steps, settings.checkpoints), run.steps):
            if run.step > step:  # kept before the run was stopped
                continue
            if not run.train(step, budget, progress):
                run.save()
                return "stopped", {"step": run.step, "steps": run.steps}
            metrics = {
                **evaluate(model, test, settings.batch_size, progress),
                **{"step": step, "train_rows": len(train), "test_rows": len(test)},
                **settings.model_dump(),
            }
            if step < run.steps:
                run.save()  # first: checkpoints without it belong to no run that could go on
                write_model(model, checkpoint_folder(folder, step), metrics)
        write_model(model, folder, metrics)
        (folder / STATE_FILE).unlink(missing_ok=True)
        model.__dict__.pop("fingerprint", None)  # it was that of the weights before
    return "completed", metrics


def write_model(model: TextModel, folder: Path, metrics: Mapping[str, Any]) -> None:
    """A folder that `load_model` takes, with how good the model is."""
    save_model(model.module, model.tokenizer, folder, {METRICS_FILE: json.dumps(metrics, indent=2) + "\n"})


def print_finetuned(status: Literal["completed", "stopped"], figures: Mapping[str, Any], out: Path) -> None:
    """How good the model has become, or how far its training has come."""
    if status == "stopped":
        say(f"stopped at step {figures['step']} of {figures['steps']}; run the same command to continue")
        return
    shown = ", ".join(
        f"{name} {figures[name]:.3f}" for name in ("accuracy", "f1", "mcc", "perplexity") if name in figures
    )
    say(f"{shown} on {figures['test_rows']} held-out rows", f"model  {out}")
    for step, place in kept_checkpoints(out).items():
        say(f"step {step}  {place}")


def default_model(task: Task | None) -> str:
    """The built-in model of a task.

    >>> default_model("causal-lm"), default_model(None)
    ('smollm2', 'minilm')
    """
    return next((name for name, model in BUILT_IN.items() if task in (None, model.task)), "minilm")


def split_rows(
    rows: Sequence[Row], model: TextModel, settings: FinetuneSettings
) -> tuple[list[Example], list[Example]]:
    """Shuffled examples for training and for the test; texts that are too long or have nothing to predict are not."""
    check_measured(model)
    shortest = 2 if model.goal.autoregressive else 1
    longest = min(settings.max_tokens, model.max_length)
    examples: list[Example] = []
    for row in rows:
        number = _class_of(row, model)
        tokens = model.tokenizer(row.text, verbose=False)["input_ids"]
        if shortest <= len(tokens) <= longest:
            examples.append((tokens, number))
    random.Random(settings.seed).shuffle(examples)
    kept = max(1, round(settings.held_out * len(examples)))
    if len(examples) <= kept:
        raise GradleakError(f"{len(examples)} rows are too few to train on some and test on others")
    return examples[kept:], examples[:kept]


def _class_of(row: Row, model: TextModel) -> int | None:
    if not model.goal.labelled:
        return None
    if row.label is None:
        raise GradleakError("fine-tuning a classifier needs labels: give --label-column, or use --task lm")
    return class_number(model, row.label)


def check_measured(model: TextModel) -> None:
    """Refuse to train for a task of which nobody could say afterwards how well it was learned."""
    if model.goal.quality is None:
        known = enumerated([task.name for task in text_tasks() if task.quality is not None])
        raise GradleakError(f"training is measured for {known}; {model.name} is loaded for {model.task}")


def evaluate(
    model: TextModel, examples: Sequence[Example], batch_size: int, progress: Progress = SILENT
) -> dict[str, float]:
    """Accuracy, F1 and MCC of a classifier, the perplexity of a language model."""
    if model.goal.quality == "perplexity":
        return {"perplexity": round(perplexity(model, [tokens for tokens, _ in examples], batch_size), 4)}
    predicted: list[int] = []
    progress.begin("testing", len(examples))
    for first in range(0, len(examples), batch_size):
        batch = model.pad([tokens for tokens, _ in examples[first : first + batch_size]])
        with torch.no_grad():
            predicted += model.logits(ids=batch.ids, mask=batch.mask).argmax(dim=-1).tolist()
        progress.advance(len(predicted))
    progress.end()
    truth = [number for _, number in examples if number is not None]
    return classification_metrics(truth, predicted, model.num_labels)


class _Run:
    """The state of one training: weights, optimiser, step."""

    def __init__(
        self, model: TextModel, examples: Sequence[Example], settings: FinetuneSettings, folder: Path, identity: str
    ) -> None:
        self.model, self.examples, self.settings, self.identity = model, examples, settings, identity
        self.path = folder / STATE_FILE
        self.per_epoch = -(-len(examples) // settings.batch_size)
        self.steps = settings.epochs * self.per_epoch
        self.step = 0
        self.optimizer = torch.optim.AdamW(list(model.parameters().values()), lr=settings.lr, weight_decay=0.01)
        if self.path.is_file():
            self._resume()
        elif kept_checkpoints(folder):
            raise GradleakError(f"{folder} holds another run's checkpoints; remove them or choose another folder")

    def train(self, until: int, budget: Budget, progress: Progress) -> bool:
        """Take the steps that are left up to this one; False if the budget ended them."""
        saved = time.monotonic()
        progress.begin("fine-tuning", self.steps, "steps")
        self.model.module.train()
        try:
            while self.step < until:
                if budget.over:
                    return False
                loss = self._step()
                self.step += 1
                progress.advance(self.step, loss=loss)
                if time.monotonic() - saved > SAVE_SECONDS:
                    self.save()
                    saved = time.monotonic()
        finally:
            self.model.module.eval()
            progress.end()
        return True

    def save(self) -> None:
        state = {
            "identity": self.identity,
            "step": self.step,
            "weights": self.model.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }
        with replacing(self.path) as scratch:
            fill_state(scratch, state)

    def _resume(self) -> None:
        state = torch.load(self.path, map_location=self.model.device, weights_only=True)
        if state["identity"] != self.identity:
            raise GradleakError(f"{self.path} belongs to another run; remove it or choose another folder")
        self.step = int(state["step"])
        self.model.module.load_state_dict(state["weights"])
        self.optimizer.load_state_dict(state["optimizer"])

    def _step(self) -> float:
        epoch, number = divmod(self.step, self.per_epoch)
        # Order and dropout follow from the step alone, so that a resumed run is the same run.
        order = random.Random(f"{self.settings.seed}/{epoch}").sample(range(len(self.examples)), len(self.examples))
        size = self.settings.batch_size
        chosen = [self.examples[i] for i in order[number * size : (number + 1) * size]]
        torch.manual_seed(self.settings.seed + self.step)
        batch = self.model.pad([tokens for tokens, _ in chosen])
        targets = self.model.goal.targets(
            [number for _, number in chosen if number is not None], batch.ids, self.model.goal.outputs(self.model)
        )
        loss = self.model.loss(targets, ids=batch.ids, mask=batch.mask)
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.module.parameters(), CLIP)
        self.optimizer.param_groups[0]["lr"] = self.settings.lr * (1 - self.step / self.steps)
        self.optimizer.step()
        return float(loss.detach())
