"""What an attack knows of a batch before it searches: what the manifest grants, and what the gradient gives away."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.errors import GradleakError
from gradleak.models.target import TargetModel
from gradleak.update import Update

# Below this share of the largest row, a gradient row is rounding.
ROW_NOISE = 1e-6


@dataclass(frozen=True)
class Knowledge:
    """Size, labels and token counts of a batch, and which of them the attack had to find."""

    lengths: list[int]
    labels: list[int] | None
    found: list[str]


def gather(update: Update, model: TargetModel, attack: str) -> Knowledge:
    """Take what is granted, find the rest where one sentence's gradient reveals it, refuse otherwise."""
    known = update.known
    size = known.batch_size or len(known.lengths or known.labels or ())
    if not size:
        raise GradleakError(f"{attack} needs the batch size and this update does not grant it")
    found = []
    if known.lengths is not None:
        lengths = list(known.lengths)
    else:
        found.append("lengths")
        lengths = [_single(size, "lengths", attack, length_from_positions(update, model))]
    labels = None
    if model.task == "classification":
        if known.labels is not None:
            labels = list(known.labels)
        else:
            found.append("labels")
            labels = [_single(size, "labels", attack, label_from_head(update, model))]
    return Knowledge(lengths, labels, found)


def length_from_positions(update: Update, model: TargetModel) -> int | None:
    """The longest sentence's token count: position rows beyond it have no gradient."""
    table = model.adapter.positions
    gradient = update.tensors.get(model.adapter.parameter_of(table)) if table is not None else None
    if gradient is None:
        return None
    used = _used_rows(gradient).nonzero()
    if not len(used):
        return None
    # A language model predicts nothing from its last token, so that position has no gradient.
    unseen = 1 if model.task == "causal-lm" else 0
    return int(used.max()) + 1 - model.adapter.family.first_position + unseen


def label_from_head(update: Update, model: TargetModel) -> int | None:
    """The class of a single example: cross-entropy pulls only the true class's logit up.

    The bias gradient is (probability − one for the true class), so one entry is negative. Without a bias
    the weight rows tell for three classes or more: the true class's row points against all the others.
    """
    name = model.adapter.name_of(model.adapter.output_layer)
    bias = update.tensors.get(f"{name}.bias")
    if bias is not None:
        return int(bias.argmin()) if float(bias.min()) < 0 else None
    weight = update.tensors.get(f"{name}.weight")
    if weight is None or len(weight) < 3:
        return None
    signs = torch.nn.functional.normalize(weight, dim=1) @ torch.nn.functional.normalize(weight, dim=1).T
    return int(signs.sum(dim=1).argmin())


def _used_rows(gradient: Tensor) -> Tensor:
    sizes = gradient.norm(dim=1)
    return sizes > ROW_NOISE * sizes.max()


def _single(size: int, what: str, attack: str, value: int | None) -> int:
    if size > 1 or value is None:
        reason = f"of a batch of {size}" if size > 1 else "from the tensors in this update"
        raise GradleakError(f"{attack} cannot find the {what} {reason} and the update does not grant them")
    return value
