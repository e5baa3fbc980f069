"""Update folders out of a run of Hugging Face's Trainer: what a client would have sent at these steps.

    trainer = Trainer(..., processing_class=tokenizer, callbacks=[RecordUpdates("updates")])

writes the gradient of the first step, as a FedSGD client sends it; `RecordUpdates("updates", steps=4)` writes how far
four steps moved the weights, as a FedAvg client does. Each recorded step has a folder with `model`, the model as it
was, and `update`, whose manifest has the rule of the run: its optimiser, step sizes, clipping. What a rule cannot say
is in its notes.
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
from gradleak.models.objective import task_of
from gradleak.models.tasks import text_task
from gradleak.updates.client_rule import ClientRule
from gradleak.updates.integrations.form import bare
from gradleak.updates.integrations.optimizers import rule_of_optimizer
from gradleak.updates.integrations.recording import MODEL, Recorder
from gradleak.updates.rule_options import in_passes
from gradleak.updates.schedules import schedule_of


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
            weights = _recorded(kwargs["model"])
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
            self._write(window, _recorded(kwargs["model"]), args, kwargs)

    def _write(self, window: _Window, tensors: Mapping[str, Tensor], args: Any, kwargs: dict[str, Any]) -> None:
        model = kwargs["model"]
        size = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
        rows = _rows(kwargs["train_dataloader"], args)
        _, sentences = covered(window.first, self.steps or 1, rows, size)
        dropout = any(isinstance(part, torch.nn.Dropout) and part.p > 0 for part in model.modules())
        common = {"mode": "train" if dropout else "eval", "clip": args.max_grad_norm or None}
        notes = _notes(args)
        if self.steps is None:
            rule = ClientRule.model_validate(common)
            if window.clipped:
                notes.append(f"gradients were clipped to norm {args.max_grad_norm:g}: their size is lost")
        else:
            parameters = {name: p for name, p in bare(model).named_parameters() if p.requires_grad}
            settings, rough = rule_of_optimizer(kwargs["optimizer"], parameters, first=window.first == 1)
            warmup = args.get_warmup_steps(args.max_steps) if args.max_steps > 0 else int(args.warmup_steps)
            if max(window.rates) <= 0:
                raise GradleakError(f"step {window.first}: the step size is 0 (warm-up?), so no weight moves")
            rates, other = schedule_of(window.rates, args.learning_rate, warmup)
            notes += [*rough, *other, *_token_note(model, args)]
            steps = {"batch": args.train_batch_size * args.world_size, "accumulate": args.gradient_accumulation_steps}
            made = ClientRule.model_validate({**common, **settings, **rates, **steps, "steps": self.steps})
            rule = in_passes(made, sentences)
        recorder = Recorder.of(self.out, model, rule, notes=notes)
        recorder.write(self._place(window.first) / "update", window.weights, tensors, sentences=sentences)

    def _place(self, step: int) -> Path:
        return self.out / f"step-{step:06d}"


def _recorded(model: Any) -> dict[str, Tensor]:
    """The parameters to look at: all, or the adapters alone, since the model below them may be large."""
    plain = bare(model)
    adapters = hasattr(plain, "peft_config")
    return {name: p for name, p in plain.named_parameters() if p.requires_grad or not adapters}


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


def _notes(args: Any) -> list[str]:
    notes = [f"computed in mixed precision ({'fp16' if args.fp16 else 'bf16'})"] if args.fp16 or args.bf16 else []
    if args.label_smoothing_factor:
        notes.append(f"labels were smoothed by {args.label_smoothing_factor:g}, which the attack does not know")
    return notes


def _token_note(model: Any, args: Any) -> list[str]:
    if args.gradient_accumulation_steps == 1 or text_task(task_of(bare(model))).one_per_text:
        return []
    return ["Trainer takes the mean over all tokens of the accumulated mini-batches, not over the mini-batches"]
