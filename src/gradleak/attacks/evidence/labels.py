"""Which classes a batch has, read off the gradient of the output layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from gradleak.attacks.evidence.compositions import all_compositions, cheapest_compositions
from gradleak.models.tasks import Label
from gradleak.models.text import TextModel
from gradleak.updates.update import Update

# Sentences of random tokens whose predictions stand for those of the unknown sentences.
SAMPLES = 32
SAMPLE_LENGTH = 12


def label_of_one(update: Update, model: TextModel) -> int | None:
    """The class of a single example: cross-entropy pulls only the true class's logit up.

    The bias gradient is (probability − 1 for the true class), so a single entry is negative. Without a bias
    the rows of the weight show it for three classes or more: the true class's row points against all the others.
    """
    bias, weight = _head(update, model)
    if bias is not None:
        return int(bias.argmin()) if float(bias.min()) < 0 else None
    if weight is None or len(weight) < 3:
        return None
    directions = F.normalize(weight, dim=1)
    return int((directions @ directions.T).sum(dim=1).argmin())


def number_of_one(update: Update, model: TextModel) -> Label | None:
    """The label of a single example where there is one prediction a sentence, but no class to choose.

    The bias gradient is the derivative by the logits. Where the label depends on the logits too, those of random
    tokens stand in for the sentence's.
    """
    bias, _ = _head(update, model)
    if bias is None or not model.goal.one_per_text:
        return None
    label, _ = model.goal.read_slope(bias[None].to(model.device), _typical_logits(model).mean(dim=0)[None], (), 1)
    return label


def label_counts(update: Update, model: TextModel, size: int) -> Iterator[tuple[int, ...]]:
    """How many sentences each class may have, likeliest first.

    The bias gradient is the mean probability minus the share of each class. The probabilities of the unknown
    sentences are not known, so those of random tokens stand in, and counts are ordered by how well they fit.
    """
    bias, _ = _head(update, model)
    if bias is None:
        return all_compositions(size, model.num_labels)
    wanted: list[float] = (size * (_typical_probabilities(model) - bias.to(model.device))).tolist()

    def misfit(counts: Sequence[int]) -> float:
        return sum(abs(count - own) for count, own in zip(counts, wanted, strict=True))

    return cheapest_compositions(_nearest_counts(wanted, size), misfit, least=0, most=size, unordered=False)


def _nearest_counts(wanted: Sequence[float], size: int) -> tuple[int, ...]:
    """The whole counts of so many sentences that differ least from the wanted numbers.

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
    """A sorted list in every order, each once, in lexicographic order."""
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


def _typical_probabilities(model: TextModel) -> Tensor:
    return _typical_logits(model).softmax(dim=-1).mean(dim=0)


@torch.no_grad()
def _typical_logits(model: TextModel) -> Tensor:
    tokens = model.text_tokens.nonzero()[:, 0].cpu()
    generator = torch.Generator().manual_seed(0)
    picks = tokens[torch.randint(len(tokens), (SAMPLES, SAMPLE_LENGTH), generator=generator)].tolist()
    batch = model.pad([[*model.prefix, *row, *model.suffix] for row in picks])
    return model.logits(ids=batch.ids, mask=batch.mask)
