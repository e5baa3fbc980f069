"""Any number of classes a sentence, each a yes or a no of its own, by binary cross-entropy."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from gradleak.core.errors import GradleakError
from gradleak.core.privacy import private
from gradleak.models.tasks import Label
from gradleak.models.tasks.base import GivenLabel, TextTask, whole_numbers
from gradleak.models.tasks.classification import class_number

if TYPE_CHECKING:
    from gradleak.models.text import TextModel


class MultiLabel(TextTask):
    """A label is the classes that hold: a list of numbers or names, `a;b` in a column, or as many floats as there
    are classes, each 0 or 1.
    """

    name = "multi-label"
    head = "classification"
    meaning = "any number of classes a sentence"
    auto_class = "AutoModelForSequenceClassification"
    suffixes = ("ForSequenceClassification",)
    problem_type = "multi_label_classification"
    adapter_type = "SEQ_CLS"
    one_per_text = True

    def label(self, model: TextModel, text: str, given: GivenLabel) -> Label:
        if isinstance(given, str):
            given = [_number(part) for part in given.split(";") if part.strip()]
        elif not isinstance(given, Sequence):
            given = [given]
        if given and all(isinstance(value, float) for value in given):
            if len(given) != model.num_labels or any(value not in (0.0, 1.0) for value in given):
                raise GradleakError(
                    f"label {private(repr(given))} is not a 0.0 or 1.0 for each of the {model.num_labels} classes"
                )
            given = [number for number, value in enumerate(given) if value]
        return tuple(sorted({class_number(model, each) for each in given}))

    def drawn_label(self, model: TextModel, text: str, rng: random.Random) -> Label:
        return tuple(number for number in range(model.num_labels) if rng.random() < 0.5)

    def check_label(self, model: TextModel, label: Label) -> None:
        if any(not 0 <= each < model.num_labels for each in whole_numbers(self.name, label)):
            raise GradleakError(
                f"the manifest gives a label out of range; {model.name} has {model.num_labels} classes"
            )

    def targets(self, labels: Sequence[Label] | None, ids: Tensor, outputs: int) -> Tensor:
        targets = torch.zeros(len(labels or ()), outputs, device=ids.device)
        for row, label in zip(targets, labels or (), strict=True):
            row[list(whole_numbers(self.name, label))] = 1.0
        return targets

    def no_targets(self, shape: Sequence[int], outputs: int) -> Tensor:
        return torch.zeros(*shape[:-1], outputs)

    def outputs(self, model: TextModel) -> int:
        return model.num_labels

    def losses(self, logits: Tensor, targets: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        each = F.binary_cross_entropy_with_logits(logits, targets.to(logits.dtype), reduction="none")
        losses = each.mean(dim=1, keepdim=True)
        return losses, torch.ones_like(losses)

    def predictions(self, targets: Tensor, mask: Tensor) -> int:
        return len(mask)

    def slopes(
        self, model: TextModel, logits: Tensor, tokens: Sequence[int], predicted: Sequence[int]
    ) -> list[Tensor]:
        return [torch.eye(logits.shape[-1], dtype=logits.dtype, device=logits.device)[:, None, :]]

    def read_slope(
        self, slope: Tensor, logits: Tensor, tokens: Sequence[int], sentences: int | None
    ) -> tuple[Label | None, float | None]:
        """Of a class that holds, the slope is negative. Its size says what share of the mean the sentence is."""
        holds = slope[0] < 0
        share = logits.shape[-1] * (slope[0] / (logits[0].sigmoid() - holds.to(logits))).mean()
        return tuple(holds.nonzero()[:, 0].tolist()), float(share)


def _number(text: str) -> int | str:
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else text


MULTI_LABEL = MultiLabel()
