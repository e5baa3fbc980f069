"""Which class an image has: known, or read off the gradient of the last layer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradleak.core.errors import GradleakError
from gradleak.models.image import ImageModel
from gradleak.updates.update import Update


def labels_of(update: Update, model: ImageModel, attack: str) -> tuple[int, ...]:
    """The classes of a batch: known, or for a single image found by the rule of iDLG."""
    if update.known.classes is not None:
        return update.known.classes
    if update.known.size != 1:
        raise GradleakError(
            f"{attack} finds the label of a single image only; larger batches need batch_size and labels known"
        )
    return (label_of_one(update, model),)


def label_of_one(update: Update, model: ImageModel) -> int:
    """The class whose logit cross-entropy pulls up: its row of the last layer points against all others'."""
    rows = [update.tensors.get(f"{model.head}.{part}") for part in ("weight", "bias")]
    whole = [row.reshape(len(row), -1) for row in rows if row is not None]
    if not whole:
        raise GradleakError(f"the update holds nothing of {model.head}, so the label must be known")
    table = torch.cat(whole, dim=1)
    return int((table.sum(dim=1) if model.rectified else class_errors(table)).argmin())


def class_errors(table: Tensor) -> Tensor:
    """By how much a single image's logits were wrong, class by class, up to a positive factor.

    Each row is its class's error times the inputs of the last layer, so all rows lie along one direction. Behind a
    ReLU or a sigmoid these inputs are not negative, and the sum of a row has the sign of its error; noise and
    pruning change a sum of hundreds of coordinates less than the bias alone. Behind a layer norm a sum says nothing:
    the direction itself is taken, and turned so that only one error is negative, as it must be. Of two classes either
    may be; then the bias, whose input is 1, tells which.

    >>> inputs = torch.tensor([3.0, -5.0, 1.0])
    >>> class_errors(torch.outer(torch.tensor([0.2, -0.7, 0.5]), inputs)).argmin().item()
    1
    """
    left, sizes, right = torch.linalg.svd(table.double(), full_matrices=False)
    errors = left[:, 0] * sizes[0]
    against, turned = _further_negative(errors), _further_negative(-errors)
    return -errors if turned < against or (turned == against and float(right[0, -1]) < 0) else errors


def _further_negative(errors: Tensor) -> float:
    """How much there is of negative errors beside the first."""
    return float(errors.sort().values[1:].clamp_max(0).abs().sum())


def what_was_found(updates: Sequence[Update]) -> list[list[str]]:
    """What the attack had to find itself of every update, as a reconstruction says it."""
    return [[] if update.known.classes is not None else ["labels"] for update in updates]
