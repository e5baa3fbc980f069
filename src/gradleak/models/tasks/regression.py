"""A number a sentence, by squared error."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gradleak.core.errors import GradleakError
from gradleak.core.privacy import private
from gradleak.models.tasks import Label
from gradleak.models.tasks.base import GivenLabel, TextTask

if TYPE_CHECKING:
    from gradleak.models.text import TextModel


class Regression(TextTask):
    name = "regression"
    head = "classification"
    meaning = "a number a sentence"
    auto_class = "AutoModelForSequenceClassification"
    suffixes = ("ForSequenceClassification",)
    problem_type = "regression"
    adapter_type = "SEQ_CLS"
    one_per_text = True

    def label(self, model: TextModel, text: str, given: GivenLabel) -> Label:
        try:
            number = float(given) if isinstance(given, int | float | str) else math.nan
        except (ValueError, OverflowError):
            number = math.nan
        if not math.isfinite(number):
            raise GradleakError(f"label {private(repr(given))} is not a number, which regression learns")
        return number

    def drawn_label(self, model: TextModel, text: str, rng: random.Random) -> Label:
        return round(rng.uniform(-1, 1), 3)

    def check_label(self, model: TextModel, label: Label) -> None:
        if isinstance(label, tuple) or not math.isfinite(label):
            raise GradleakError("the manifest gives a label that is not a number, which regression learns")

    def targets(self, labels: Sequence[Label] | None, ids: Tensor, outputs: int) -> Tensor:
        return torch.tensor(labels, dtype=torch.float32, device=ids.device)

    def no_targets(self, shape: Sequence[int], outputs: int) -> Tensor:
        return torch.zeros(tuple(shape[:-1]))

    def configured_classes(self, asked: int | None) -> int | None:
        if asked not in (None, 1):
            raise GradleakError(f"regression has one output, not {asked}: leave --num-labels out")
        return 1

    def outputs(self, model: TextModel) -> int:
        if model.num_labels != 1:
            raise GradleakError(f"{model.name} has {model.num_labels} outputs; regression is audited with one")
        return 1

    def losses(self, logits: Tensor, targets: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        losses = (logits - targets.to(logits.dtype).reshape(-1, 1)).square()
        return losses, torch.ones_like(losses)

    def predictions(self, targets: Tensor, mask: Tensor) -> int:
        return len(mask)

    def slopes(
        self, model: TextModel, logits: Tensor, tokens: Sequence[int], predicted: Sequence[int]
    ) -> list[Tensor]:
        return [torch.ones_like(logits)[None]]

    def read_slope(
        self, slope: Tensor, logits: Tensor, tokens: Sequence[int], sentences: int | None
    ) -> tuple[Label | None, float | None]:
        """The slope is twice the error, times the sentence's share of the mean, which must be known to tell it."""
        if sentences is None:
            return None, None
        return float(logits[0, 0] - slope[0, 0] * sentences / 2), 1 / sentences


REGRESSION = Regression()
