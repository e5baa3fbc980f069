"""Fine-tuning a classifier, so that audits can look at updates of a model that has learned its task.

The run can be stopped at any time: its state is written now and then, and the same command goes on from there.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict

from gradleak.budget import Budget
from gradleak.errors import GradleakError
from gradleak.files import output_folder, replacing, write_text
from gradleak.models.target import TargetModel
from gradleak.progress import SILENT, Progress
from gradleak.scenario.client import class_number
from gradleak.scenario.data import Row
from gradleak.scoring.classes import classification_metrics

METRICS_FILE, STATE_FILE = "metrics.json", "training.pt"
SAVE_SECONDS = 60.0
CLIP = 1.0


class FinetuneSettings(BaseModel):
    """The usual recipe of fine-tuning BERT."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    epochs: int = 2
    lr: float = 5e-5
    batch_size: int = 32
    held_out: float = 0.1
    max_tokens: int = 128
    seed: int = 0


def finetune(
    model: TargetModel,
    rows: Sequence[Row],
    out: Path,
    settings: FinetuneSettings,
    budget: Budget,
    progress: Progress = SILENT,
) -> tuple[Literal["completed", "stopped"], dict[str, Any]]:
    """Train with AdamW and a linear decay, then write a Hugging Face folder with `metrics.json` in it."""
    if model.task != "classification":
        raise GradleakError("fine-tuning is for classification models so far")
    train, test = split_rows(rows, model, settings)
    identity = f"{model.fingerprint} {settings.model_dump_json()} {len(train)} {len(test)}"
    with output_folder(out) as folder:
        run = _Run(model, train, settings, folder, identity)
        finished = run.train(budget, progress)
        if not finished:
            run.save()
            return "stopped", {"step": run.step, "steps": run.steps}
        metrics: dict[str, Any] = evaluate(model, test, settings.batch_size, progress)
        metrics |= {"train_rows": len(train), "test_rows": len(test), **settings.model_dump()}
        model.module.save_pretrained(folder)
        model.tokenizer.save_pretrained(folder)
        write_text(folder / METRICS_FILE, json.dumps(metrics, indent=2) + "\n")
        (folder / STATE_FILE).unlink(missing_ok=True)
        model.__dict__.pop("fingerprint", None)  # it was that of the weights before
    return "completed", metrics


def print_finetuned(status: Literal["completed", "stopped"], figures: Mapping[str, Any], out: Path) -> None:
    """How good the model has become, or how far its training has come."""
    if status == "stopped":
        print(f"stopped at step {figures['step']} of {figures['steps']}; run the same command to go on")
        return
    shown = ", ".join(f"{name} {figures[name]:.3f}" for name in ("accuracy", "f1", "mcc"))
    print(f"{shown} on {figures['test_rows']} held-out rows\nmodel  {out}")


def split_rows(rows: Sequence[Row], model: TargetModel, settings: FinetuneSettings) -> tuple[list[Any], list[Any]]:
    """Shuffled (tokens, class) pairs for training and for the test; sentences that are too long are passed over."""
    pairs = []
    for row in rows:
        if row.label is None:
            raise GradleakError("fine-tuning needs labels: say --label-column")
        tokens = model.tokenizer(row.text, verbose=False)["input_ids"]
        if len(tokens) <= min(settings.max_tokens, model.max_length):
            pairs.append((tokens, class_number(model, row.label)))
    random.Random(settings.seed).shuffle(pairs)
    kept = max(1, round(settings.held_out * len(pairs)))
    if len(pairs) <= kept:
        raise GradleakError(f"{len(pairs)} rows are too few to train on some and test on others")
    return pairs[kept:], pairs[:kept]


def evaluate(
    model: TargetModel, pairs: Sequence[Any], batch_size: int, progress: Progress = SILENT
) -> dict[str, float]:
    """Accuracy, F1 and MCC on (tokens, class) pairs."""
    predicted: list[int] = []
    progress.begin("testing", len(pairs))
    for first in range(0, len(pairs), batch_size):
        batch = model.pad([tokens for tokens, _ in pairs[first : first + batch_size]])
        with torch.no_grad():
            predicted += model.logits(ids=batch.ids, mask=batch.mask).argmax(dim=-1).tolist()
        progress.advance(len(predicted))
    progress.end()
    return classification_metrics([label for _, label in pairs], predicted, model.num_labels)


class _Run:
    """The state of one training: weights, optimiser, step."""

    def __init__(
        self, model: TargetModel, pairs: Sequence[Any], settings: FinetuneSettings, folder: Path, identity: str
    ) -> None:
        self.model, self.pairs, self.settings, self.identity = model, pairs, settings, identity
        self.path = folder / STATE_FILE
        self.per_epoch = -(-len(pairs) // settings.batch_size)
        self.steps = settings.epochs * self.per_epoch
        self.step = 0
        self.optimizer = torch.optim.AdamW(list(model.parameters().values()), lr=settings.lr, weight_decay=0.01)
        if self.path.is_file():
            self._resume()

    def train(self, budget: Budget, progress: Progress) -> bool:
        """Take the steps that are left; False if the budget ended them."""
        saved = time.monotonic()
        progress.begin("fine-tuning", self.steps, "steps")
        self.model.module.train()
        try:
            while self.step < self.steps:
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
            torch.save(state, scratch)

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
        order = random.Random(f"{self.settings.seed}/{epoch}").sample(range(len(self.pairs)), len(self.pairs))
        size = self.settings.batch_size
        chosen = [self.pairs[i] for i in order[number * size : (number + 1) * size]]
        torch.manual_seed(self.settings.seed + self.step)
        batch = self.model.pad([tokens for tokens, _ in chosen])
        labels = torch.tensor([label for _, label in chosen], device=self.model.device)
        loss = self.model.loss(labels, ids=batch.ids, mask=batch.mask)
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.module.parameters(), CLIP)
        self.optimizer.param_groups[0]["lr"] = self.settings.lr * (1 - self.step / self.steps)
        self.optimizer.step()
        return float(loss.detach())
