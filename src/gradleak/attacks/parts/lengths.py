"""How long the sentences of a batch are, read off the gradient."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from gradleak.models.target import TargetModel
from gradleak.update import Update

# Below this share of the largest row, a gradient row is rounding.
ROW_NOISE = 1e-6
# Under noise a row is used if it is so many standard deviations above the median one.
CLEAR_ROW = 6.0
# A singular value ends the spectrum if the next is smaller by this factor and all after it are rounding.
SPECTRUM_NOISE = 1e-6
# The longest sentence looked for when nothing in the update tells.
LONGEST = 32


def longest_sentence(update: Update, model: TargetModel) -> int | None:
    """The longest sentence's token count: position rows beyond it have no gradient."""
    table = model.adapter.positions
    gradient = update.tensors.get(model.adapter.parameter_of(table)) if table is not None else None
    if gradient is None:
        return None
    sizes = gradient.norm(dim=1)
    used = (sizes > ROW_NOISE * sizes.max()).nonzero()
    if len(used) == len(
        gradient
    ):  # every row moved: that is noise, and most rows, so also the median one, are only that
        used = (sizes > sizes.median() * (1 + CLEAR_ROW / (2 * gradient.shape[1]) ** 0.5)).nonzero()
    if not len(used):
        return None
    return int(used.max()) + 1 - model.adapter.family.first_position + _unseen(model)


def total_tokens(update: Update, model: TargetModel, sentences: int) -> int | None:
    """The token count of the whole batch: each token adds one to the rank of a layer's gradient."""
    parts = [part for layer in model.adapter.parts for role, part in layer.items() if role in ("value", "ffn_in")]
    carriers = [carrier for carrier in (part.carrier(update.tensors) for part in parts) if carrier is not None]
    ranks = [rank for rank in (_rank(carrier.matrix) for carrier in carriers) if rank is not None]
    return max(ranks) + sentences * _unseen(model) if ranks else None


def length_guesses(model: TargetModel, size: int, longest: int | None, total: int | None) -> Iterator[list[int]]:
    """Token counts a batch may have, longest sentence first; one guess where the gradient tells them all."""
    shortest = len(model.prefix) + len(model.suffix) + 1
    if size == 1:
        told = longest or total
        yield from ([told],) if told else ([n] for n in range(shortest, min(LONGEST, model.max_length) + 1))
        return
    top = longest or min(LONGEST, model.max_length)
    splits = [] if total is None else _splits(total, size, shortest, top)
    splits = [split for split in splits if longest is None or split[0] == longest]
    if splits:  # sentences of similar length are likelier than a few tokens beside a long one
        yield from sorted(splits, key=lambda split: sum(n * n for n in split))
    else:  # all as long as the longest, then shorter ones
        yield from ([top] + [n] * (size - 1) for n in range(top, shortest - 1, -1))


def _splits(total: int, parts: int, low: int, high: int) -> list[list[int]]:
    """The ways to write a total as a falling list of numbers between two limits.

    >>> _splits(10, 2, 3, 6)
    [[6, 4], [5, 5]]
    """
    if parts == 1:
        return [[total]] if low <= total <= high else []
    found = []
    for first in range(min(high, total - low * (parts - 1)), low - 1, -1):
        if first * parts < total:
            break
        found += [[first, *rest] for rest in _splits(total - first, parts - 1, low, first)]
    return found


def _rank(gradient: Tensor) -> int | None:
    """The numerical rank, or None where no gap shows it."""
    values = torch.linalg.svdvals(gradient.double())
    if not float(values[0]):
        return None
    rank = int((values > SPECTRUM_NOISE * values[0]).sum())
    return rank if rank < len(values) else None


def _unseen(model: TargetModel) -> int:
    """A language model predicts nothing from a sentence's last token, so it leaves no trace."""
    return 1 if model.task == "causal-lm" else 0
