"""Why an exact recovery is not possible, with its numbers."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gradleak.attacks.reasons import Reason
from gradleak.attacks.spans.spans import numerical_rank
from gradleak.models.adapter import Part
from gradleak.models.text import TextModel
from gradleak.updates.update import Update


def not_in_update(update: Update, groups: Sequence[Sequence[Part]]) -> Reason | None:
    """A reason if the update holds none of the matrices of some group."""
    for parts in groups:
        if not any(part.carrier(update.tensors) is not None for part in parts):
            return Reason(kind="matrix-missing", about=parts[0].weight_name)
    return None


def too_little(update: Update, model: TextModel, tokens: int) -> Reason | None:
    """A reason if what can be matched holds fewer independent numbers than the embeddings of so many tokens.

    A matrix of rank r tells r times (rows + columns) numbers at most. The word table has no gradient to match.
    """
    unknown = tokens * model.token_embedding.shape[1]
    words = model.adapter.parameter_of(model.adapter.words)
    told = 0
    for name, tensor in update.tensors.items():
        if name != words:
            told += (
                tensor.numel()
                if tensor.dim() < 2
                else numerical_rank(tensor.flatten(1)) * sum(tensor.flatten(1).shape)
            )
        if told >= unknown:
            return None
    return Reason(kind="too-little-seen", numbers={"told": told, "unknown": unknown, "tokens": tokens})


def no_end(update: Update, parts: Sequence[Part]) -> Reason:
    """A reason from a spectrum that shows no rank: too many tokens, or noise over everything."""
    carrier = next(c for c in (part.carrier(update.tensors) for part in parts) if c is not None)
    matrix = carrier.matrix.double()
    sizes = torch.linalg.svdvals(matrix)
    if not float(sizes[0]):
        return Reason(kind="zero", about=carrier.name)
    numbers = {"largest": float(sizes[0]), "smallest": float(sizes[-1]), "limit": min(matrix.shape)}
    return Reason(kind="no-gap", about=carrier.name, numbers=numbers)
