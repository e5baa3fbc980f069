"""Why an exact recovery is not possible, in words and numbers."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gradleak.models.adapter import Part
from gradleak.update import Update


def not_in_update(update: Update, groups: Sequence[Sequence[Part]]) -> str | None:
    """A note if the update holds none of the matrices of some group."""
    for parts in groups:
        if not any(part.carrier(update.tensors) is not None for part in parts):
            return f"exact recovery needs the gradient of {parts[0].weight_name}, which this update does not hold"
    return None


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
