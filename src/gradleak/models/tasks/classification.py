"""One class a sentence, by cross-entropy."""

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
from gradleak.models.tasks.base import GivenLabel, TextTask

if TYPE_CHECKING:
    from gradleak.models.text import TextModel


class Classification(TextTask):
    name = head = "classification"
    meaning = "one class a sentence"
    auto_class = "AutoModelForSequenceClassification"
    suffixes = ("ForSequenceClassification",)
    adapter_type = "SEQ_CLS"
    quality = "classes"
    least_classes = 2
    one_per_text = True

    def label(self, model: TextModel, text: str, given: GivenLabel) -> Label:
        return class_number(model, given)

    def drawn_label(self, model: TextModel, text: str, rng: random.Random) -> Label:
        return rng.randrange(model.num_labels)

    def check_label(self, model: TextModel, label: Label) -> None:
        if not isinstance(label, int) or not 0 <= label < model.num_labels:
            raise GradleakError(
                f"the manifest gives a label out of range; {model.name} has {model.num_labels} classes"
            )

    def label_choices(self, model: TextModel) -> Sequence[Label | None]:
        return range(model.num_labels)

    def targets(self, labels: Sequence[Label] | None, ids: Tensor, outputs: int) -> Tensor:
        return torch.tensor(labels, device=ids.device)

    def no_targets(self, shape: Sequence[int], outputs: int) -> Tensor:
        return torch.zeros(tuple(shape[:-1]), dtype=torch.long)

    def outputs(self, model: TextModel) -> int:
        if model.num_labels < 2:
            raise GradleakError(f"{model.name} has one output; a classifier needs two classes or more (--num-labels)")
        return model.num_labels

    def losses(self, logits: Tensor, targets: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        losses = F.cross_entropy(logits, targets.reshape(-1), reduction="none")[:, None]
        return losses, torch.ones_like(losses)

    def predictions(self, targets: Tensor, mask: Tensor) -> int:
        return len(mask)


def class_number(model: TextModel, label: object) -> int:
    """The class a label means: its number, or its name in the model's config."""
    if isinstance(label, str):
        names = {str(k).lower(): int(v) for k, v in (model.module.config.label2id or {}).items()}
        if label.lower() not in names:
            raise GradleakError(
                f"label {private(repr(label))} is not a class of {model.name}; it has {', '.join(names)}, or the "
                f"numbers 0 to {model.num_labels - 1}"
            )
        return names[label.lower()]
    if not isinstance(label, int) or not 0 <= label < model.num_labels:
        raise GradleakError(
            f"label {private(str(label))} is out of range: {model.name} has classes 0 to {model.num_labels - 1} "
            "(a new head can have more: --num-labels)"
        )
    return int(label)


CLASSIFICATION = Classification()
