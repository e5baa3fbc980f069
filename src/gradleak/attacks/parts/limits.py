"""Why an exact recovery is not possible, in words and numbers."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gradleak.attacks.parts.spans import numerical_rank
from gradleak.models.adapter import Part
from gradleak.models.target import TargetModel
from gradleak.update import Update


def not_in_update(update: Update, groups: Sequence[Sequence[Part]]) -> str | None:
    """A note if the update holds none of the matrices of some group."""
    for parts in groups:
        if not any(part.carrier(update.tensors) is not None for part in parts):
            return f"exact recovery needs the gradient of {parts[0].weight_name}, which this update does not hold"
    return None


def too_little(update: Update, model: TargetModel, tokens: int) -> str | None:
    """A note if what can be matched holds fewer independent numbers than the embeddings of so many tokens.

    A matrix of rank r tells r times (rows + columns) numbers at most. The word table has no gradient to match.
    """
    unknown = tokens * model.word_table.shape[1]
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
    return (
        f"too little is seen to tell sentences apart by matching: about {told:,} independent numbers for the "
        f"{unknown:,} of {tokens} unknown embeddings"
    )


def no_end(update: Update, parts: Sequence[Part]) -> str:
    """A note on a spectrum that shows no rank: too many tokens, or noise over everything."""
    carrier = next(c for c in (part.carrier(update.tensors) for part in parts) if c is not None)
    matrix = carrier.matrix.double()
    sizes = torch.linalg.svdvals(matrix)
    limit = min(matrix.shape)
    if not float(sizes[0]):
        return f"the gradient of {carrier.name} is zero: nothing is left to read"
    return (
        f"the singular values of {carrier.name} fall from {float(sizes[0]):.1e} to {float(sizes[-1]):.1e} "
        f"without a gap: the batch has {limit} tokens or more, the rank limit of this matrix, or noise covers them"
    )
