"""How much of an update is noise, read off the update alone."""

from __future__ import annotations

import statistics

import torch
from torch import Tensor

from gradleak.attacks.evidence.rows import row_noise
from gradleak.attacks.spans.certify import attention_parts, joint_span
from gradleak.models.text import TextModel
from gradleak.updates.update import Update

ROUNDS = 20
# Singular values of pure noise end here, in units of noise times (root of rows + root of columns).
EDGE = 1.02


def noise_level(update: Update, model: TextModel) -> float:
    """The standard deviation of noise on the entries of matrices, 0 if the spectra show none.

    A gradient's matrices have as many directions as the batch has tokens; the rest of their spectrum is noise.
    """
    levels = []
    for layer in range(len(model.adapter.parts)):
        for part in attention_parts(model, layer):
            if joint_span(update.tensors, [part]) is not None:
                return 0.0
            carrier = part.carrier(update.tensors)
            if carrier is not None:
                levels.append(tail_level(torch.linalg.svdvals(carrier.matrix.float()), carrier.matrix.shape))
    return statistics.median(levels) if levels else 0.0


def added_noise(update: Update, model: TextModel) -> float:
    """The standard deviation of noise that was added to every entry of an update.

    Rows of the token embedding show it best: most tokens are in no batch. Where they do not, spectra may; but if a
    batch has more tokens than a matrix has directions, its spectrum ends nowhere, as with noise. So usual rows have
    no more than what was added.
    """
    table = update.tensors.get(model.adapter.parameter_of(model.adapter.token_embedding))
    if table is None:
        return noise_level(update, model)
    root = table.shape[1] ** 0.5
    return row_noise(table) / root or min(noise_level(update, model), float(table.norm(dim=1).median()) / root)


def tail_level(sizes: Tensor, shape: torch.Size) -> float:
    """The noise that explains all singular values but the largest few, of a matrix of this shape.

    >>> noise = 0.1 * torch.randn(200, 100, generator=torch.Generator().manual_seed(0))
    >>> noise[:, 0] += 5
    >>> round(tail_level(torch.linalg.svdvals(noise), noise.shape), 2)
    0.1
    """
    rows, columns = shape
    sizes = sizes.double()  # squares of very small or large values leave single precision
    kept = len(sizes) // 4
    level = 0.0
    for _ in range(ROUNDS):
        level = float(sizes[kept:].square().sum() / ((rows - kept) * (columns - kept))) ** 0.5
        above = int((sizes > EDGE * level * (rows**0.5 + columns**0.5)).sum())
        if above == kept:
            break
        kept = above
    return level
