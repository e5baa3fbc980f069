"""Update folders out of a run of Hugging Face's Trainer: what a client would have sent at these steps.

    trainer = Trainer(..., processing_class=tokenizer, callbacks=[RecordUpdates("updates")])

writes the gradient of the first step, as a FedSGD client sends it; `RecordUpdates("updates", steps=4)` writes how far
four steps moved the weights, as a FedAvg client does. Each recorded step has a folder with `model`, the model as it
was, and `update`. What its rule describes only roughly, such as plain SGD where AdamW was used, is in its notes.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import TrainerCallback

from gradleak.core.errors import GradleakError
from gradleak.models.load import save_model
from gradleak.updates.client_rule import ClientRule
from gradleak.updates.integrations.form import bare
from gradleak.updates.integrations.recording import MODEL, Recorder, optimizer_note


@dataclass(eq=False)
class _Window:
    """The steps that one update is made of, while they are taken."""

    first: int
    weights: dict[str, Tensor]
    rates: list[float] = field(default_factory=list)
    clipped: bool = False


class RecordUpdates(TrainerCallback):  # type: ignore[misc]
    """Writes updates while a Trainer trains.

    `at` are the steps, from 1, at which an update begins. Without `steps` it is the gradient of that one step, after
    clipping and before the optimiser; with `steps` it is the weights before them minus the weights after.
    """

    def __init__(self, out: str | Path, *, at: Collection[int] = (1,), steps: int | None = None) -> None:
        if steps is not None and steps < 1:
            raise GradleakError(f"an update takes at least one step, not {steps}")
        self.out, self.at, self.steps = Path(out), frozenset(at), steps
        self._open: list[_Window] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if kwargs.get("processing_class") is None:
            raise GradleakError("RecordUpdates needs the tokenizer: Trainer(..., processing_class=tokenizer)")
        self._open = []

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        step = state.global_step + 1
        if step in self.at and state.is_world_process_zero:
            save_model(kwargs["model"], kwargs["processing_class"], self._place(step) / MODEL)
            weights = dict(bare(kwargs["model"]).named_parameters())
            self._open.append(_Window(step, {name: w.detach().cpu().clone() for name, w in weights.items()}))

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not self._open:
            return
        gradients = {n: p.grad for n, p in bare(kwargs["model"]).named_parameters() if p.grad is not None}
        for window in self._open:
            window.rates.append(float(kwargs["optimizer"].param_groups[0]["lr"]))
            window.clipped |= _clipped(gradients, args.max_grad_norm)
        if self.steps is None:
            self._write(self._open.pop(), gradients, args, kwargs)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        done = [window for window in self._open if len(window.rates) == self.steps]
        self._open = [window for window in self._open if window not in done]
        for window in done:
            self._write(window, dict(bare(kwargs["model"]).named_parameters()), args, kwargs)

    def _write(self, window: _Window, tensors: Mapping[str, Tensor], args: Any, kwargs: dict[str, Any]) -> None:
        model = kwargs["model"]
        steps = self.steps or 1
        size = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
        epochs, sentences = covered(window.first, steps, _rows(kwargs["train_dataloader"], args), size)
        dropout = any(isinstance(part, torch.nn.Dropout) and part.p > 0 for part in model.modules())
        rule = ClientRule(mode="train" if dropout else "eval")
        notes = _notes(args, window)
        if self.steps is not None:
            rate = sum(window.rates) / len(window.rates)
            if rate <= 0:
                raise GradleakError(f"step {window.first}: the step size is 0 (warm-up?), so no weight moves")
            rule = ClientRule(name="fedavg", mode=rule.mode, epochs=epochs, batch=size, lr=rate)
            notes += _training_notes(kwargs["optimizer"], window.rates)
        recorder = Recorder.of(self.out, model, rule, notes=notes)
        recorder.write(self._place(window.first) / "update", window.weights, tensors, sentences=sentences)

    def _place(self, step: int) -> Path:
        return self.out / f"step-{step:06d}"


def covered(first: int, steps: int, rows: int | None, size: int) -> tuple[int, int | None]:
    """The passes and the sentences that `steps` steps of `size` sentences cover, from step `first` on.

    Sentences are None where the steps leave an epoch without being whole epochs; then every step counts as a pass.

    >>> covered(1, 2, rows=10, size=4), covered(3, 1, rows=10, size=4), covered(1, 6, rows=10, size=4)
    ((1, 8), (1, 2), (2, 10))
    >>> covered(2, 3, rows=10, size=4), covered(1, 3, rows=None, size=4)
    ((3, None), (1, 12))
    """
    if rows is None:  # a stream has no end
        return 1, steps * size
    epoch = math.ceil(rows / size)
    start = (first - 1) % epoch
    if steps <= epoch - start:
        return 1, min(rows, (start + steps) * size) - start * size
    return (steps // epoch, rows) if not start and steps % epoch == 0 else (steps, None)


def _rows(loader: Any, args: Any) -> int | None:
    """How many sentences an epoch has; None for a stream."""
    try:
        rows = len(loader.dataset)
    except (AttributeError, TypeError):
        return None
    together = args.train_batch_size * args.world_size
    return rows // together * together if args.dataloader_drop_last else rows


def _clipped(gradients: Mapping[str, Tensor], most: float | None) -> bool:
    norm = torch.stack([gradient.detach().float().norm() for gradient in gradients.values()]).norm()
    return bool(most) and float(norm) > 0.999 * float(most or 0)


def _notes(args: Any, window: _Window) -> list[str]:
    notes = [f"gradients were clipped to norm {args.max_grad_norm:g}: their size is lost"] if window.clipped else []
    if args.fp16 or args.bf16:
        notes.append(f"computed in mixed precision ({'fp16' if args.fp16 else 'bf16'})")
    if args.label_smoothing_factor:
        notes.append(f"labels were smoothed by {args.label_smoothing_factor:g}, which the attack does not know")
    return notes


def _training_notes(optimizer: Any, rates: list[float]) -> list[str]:
    inner = getattr(optimizer, "optimizer", optimizer)  # accelerate wraps it
    group = inner.param_groups[0]
    more = [f"{key.replace('_', ' ')} {group[key]:g}" for key in ("momentum", "weight_decay") if group.get(key)]
    notes = optimizer_note(" and ".join([type(inner).__name__, *more]))
    if max(rates) > 1.01 * min(rates):
        notes.append(f"the step size went from {rates[0]:g} to {rates[-1]:g}; their mean is taken")
    return notes
