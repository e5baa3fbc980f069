"""Texts as a client trains on them by its rule: tokens in rows, and what is predicted in each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gradleak.models.completion import Places, completion_targets
from gradleak.models.packing import Piece, pack
from gradleak.models.text import Batch, TextModel

if TYPE_CHECKING:
    from gradleak.updates.client_rule import ClientRule


def training_batch(
    model: TextModel,
    texts: Sequence[str],
    classes: Sequence[int] | None,
    rule: ClientRule,
    completions: Sequence[Places | None] | None = None,
) -> tuple[Batch, Tensor]:
    """The batch and its targets: classes, or for a language model token ids.

    `completions` are where the answers stand in each text, for a rule by which only they are predicted.
    """
    # What is cut anyway may be longer than the model takes.
    rows = model.tokenize(texts) if rule.pack is not None else model.encode(texts).sentences()
    answers = rule.loss == "completion"
    targets = completion_targets(model, texts, rows, rule.marker, completions) if answers else rows
    if rule.pack is not None:
        return pack(model, rule, [Piece(*each) for each in zip(rows, targets, strict=True)])
    batch = model.pad(rows)
    if classes is not None:
        return batch, torch.tensor(classes, device=model.device)
    return batch, model.pad(targets).ids
