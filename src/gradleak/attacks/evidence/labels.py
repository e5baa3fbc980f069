"""Which classes a batch has, read off the gradient of the output layer."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from gradleak.attacks.evidence.sharing import sharings
from gradleak.models.text import TextModel
from gradleak.updates.update import Update

# Sentences of random words whose predictions stand for those of the unknown ones.
SAMPLES = 32
SAMPLE_LENGTH = 12


def label_of_one(update: Update, model: TextModel) -> int | None:
    """The class of a single example: cross-entropy pulls only the true class's logit up.

    The bias gradient is (probability − one for the true class), so one entry is negative. Without a bias
    the weight rows tell for three classes or more: the true class's row points against all the others.
    """
    bias, weight = _head(update, model)
    if bias is not None:
        return int(bias.argmin()) if float(bias.min()) < 0 else None
    if weight is None or len(weight) < 3:
        return None
    directions = F.normalize(weight, dim=1)
    return int((directions @ directions.T).sum(dim=1).argmin())


def label_counts(update: Update, model: TextModel, size: int) -> Iterator[tuple[int, ...]]:
    """How many sentences each class may have, likeliest first.

    The bias gradient is the mean probability minus the share of each class. The probabilities of the unknown
    sentences are not known, so those of random words stand in, and counts are ordered by how well they fit.
    """
    bias, _ = _head(update, model)
    if bias is None:
        return _compositions(size, model.num_labels)
    wanted: list[float] = (size * (_typical_probabilities(model) - bias.to(model.device))).tolist()

    def misfit(counts: Sequence[int]) -> float:
        return sum(abs(count - own) for count, own in zip(counts, wanted, strict=True))

    return sharings(_nearest_counts(wanted, size), misfit, least=0, most=size, alike=False)


def _nearest_counts(wanted: Sequence[float], size: int) -> tuple[int, ...]:
    """The counts of so many sentences that differ least from the wanted ones.

    >>> _nearest_counts([1.6, 0.9, -0.5], 3)
    (2, 1, 0)
    """
    counts = [0] * len(wanted)
    for _ in range(size):
        gains = [abs(count - own) - abs(count + 1 - own) for count, own in zip(counts, wanted, strict=True)]
        counts[gains.index(max(gains))] += 1
    return tuple(counts)


def arrangements(counts: Sequence[int], *, ordered: bool) -> Iterator[list[int]]:
    """The labels with these counts: sorted, and if it matters which sentence has which, in every order.

    >>> list(arrangements((1, 2), ordered=True))
    [[0, 1, 1], [1, 0, 1], [1, 1, 0]]
    """
    plain = [label for label, count in enumerate(counts) for _ in range(count)]
    if not ordered:
        yield plain
        return
    yield from _orders(plain)


def _orders(labels: list[int]) -> Iterator[list[int]]:
    """A sorted list in every order, each once, the next larger one each time."""
    order = labels.copy()
    while True:
        yield order.copy()
        rises = [n for n in range(len(order) - 1) if order[n] < order[n + 1]]
        if not rises:
            return
        here = rises[-1]
        there = max(n for n in range(here + 1, len(order)) if order[n] > order[here])
        order[here], order[there] = order[there], order[here]
        order[here + 1 :] = reversed(order[here + 1 :])


def _head(update: Update, model: TextModel) -> tuple[Tensor | None, Tensor | None]:
    name = model.adapter.name_of(model.adapter.output_layer)
    return update.tensors.get(f"{name}.bias"), update.tensors.get(f"{name}.weight")


def _compositions(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    """All ways to write a total as a sum of so many numbers.

    >>> list(_compositions(2, 2))
    [(0, 2), (1, 1), (2, 0)]
    """
    for bars in itertools.combinations(range(total + parts - 1), parts - 1):
        edges = (-1, *bars, total + parts - 1)
        yield tuple(edges[i + 1] - edges[i] - 1 for i in range(parts))


@torch.no_grad()
def _typical_probabilities(model: TextModel) -> Tensor:
    words = model.text_tokens.nonzero()[:, 0].cpu()
    generator = torch.Generator().manual_seed(0)
    picks = words[torch.randint(len(words), (SAMPLES, SAMPLE_LENGTH), generator=generator)].tolist()
    batch = model.pad([[*model.prefix, *row, *model.suffix] for row in picks])
    return model.logits(ids=batch.ids, mask=batch.mask).softmax(dim=-1).mean(dim=0)
