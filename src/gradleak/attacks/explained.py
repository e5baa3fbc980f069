"""What share of an update the sentences that were read back explain, whichever attack read them.

A batch that was read in part looks like a batch that was read, unless someone says how much of the update is still
unaccounted for. The attacker can: sentences have gradients, and what no positive sum of them makes up is left over.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence

import scipy  # its parts are loaded when they are first used
import torch
from torch import Tensor

from gradleak.attacks.base import Reconstruction
from gradleak.attacks.contains.rows import GradientRows, chosen_matrices
from gradleak.core.budget import Budget
from gradleak.core.seeds import derive_seed
from gradleak.models.base import Target
from gradleak.models.tasks import WITH_CANDIDATES
from gradleak.models.text import TextModel
from gradleak.updates.gradient import as_gradient
from gradleak.updates.update import Update

# Entries of the update that are compared, drawn once: far more than there are sentences, and few enough to keep.
ENTRIES = 1 << 16
# Labels that a sentence is tried with, where the answer does not say which it has.
MOST_LABELS = 4
# Squared, as a share of the largest: directions that rows differ in by no more than fp32 rounds. A sentence's
# gradients under two classes are opposite, and what rounding leaves between them would fit anything.
ROUNDING = 1e-10


def explained_share(update: Update, model: Target, answer: Reconstruction, budget: Budget) -> float | None:
    """1 where the sentences account for the whole update, 0 where they do so no better than random words.

    Random words of the same lengths are the measure, because gradients of any two sentences are alike to some degree.
    None where there are no sentences, or where what they add to an update is not known from their tokens and a class.
    """
    if not answer.sentences or not isinstance(model, TextModel) or model.task not in WITH_CANDIDATES:
        return None
    labels = _labels(answer, model)
    names = chosen_matrices(model, update.tensors)
    if labels is None or not names:
        return None
    gradients = GradientRows(model, names)
    wanted = gradients.of_update(as_gradient(update, model).tensors).double().cpu()
    places = _places(len(wanted))
    given = [[*model.prefix, *sentence.tokens, *model.suffix] for sentence in answer.sentences]
    drawn = _random_words(model, [sentence.tokens for sentence in answer.sentences])

    # In the same passes: as long as those of the answer, they need no further padding.
    both = [_columns(gradients, [*drawn, *given], own and [*own, *own], places, budget) for own in labels]
    by_chance, left = (
        _left_over(wanted[places], torch.cat([rows[part] for rows in both]))
        for part in (slice(len(drawn)), slice(len(drawn), None))
    )
    return max(0.0, 1.0 - left / by_chance) if by_chance else None


@functools.lru_cache(maxsize=4)
def _places(count: int) -> Tensor:
    """The entries of so many that are compared: the same for all updates of a model."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(0))[:ENTRIES].clone()


def _labels(answer: Reconstruction, model: TextModel) -> list[list[int] | None] | None:
    """The classes to try, of all sentences each; None if classes do not say what a sentence adds to an update."""
    count = len(answer.sentences)
    if not model.goal.labelled:
        return [None]
    if answer.labels is not None and len(answer.labels) == count:
        whole = [label for label in answer.labels if isinstance(label, int)]
        return [whole] if len(whole) == count else None
    return [[label] * count for label in range(min(model.num_labels, MOST_LABELS))]


def _random_words(model: TextModel, contents: Sequence[Sequence[int]]) -> list[list[int]]:
    """Sentences of random tokens, as long as these."""
    ids = model.text_tokens.nonzero()[:, 0].tolist()
    chance = random.Random(derive_seed(0, "random words"))
    return [[*model.prefix, *chance.choices(ids, k=len(own)), *model.suffix] for own in contents]


def _columns(
    gradients: GradientRows,
    sentences: Sequence[Sequence[int]],
    labels: Sequence[int] | None,
    places: Tensor,
    budget: Budget,
) -> Tensor:
    """Their gradients at the places, a row for each sentence."""
    made = [(some.which, some.rows.cpu()[:, places]) for some in gradients.of(sentences, labels, budget)]
    order = torch.tensor([number for some, _ in made for number in some])
    return torch.cat([rows for _, rows in made])[order.argsort()]


def _left_over(wanted: Tensor, rows: Tensor) -> float:
    """What is left of a vector without the positive sum of rows nearest to it, as a share of its square.

    >>> round(_left_over(torch.tensor([3.0, 4.0]), torch.tensor([[1.0, 0.0]])), 2)
    0.64
    >>> _left_over(torch.tensor([3.0, 4.0]), torch.zeros(1, 2))
    1.0
    """
    wanted, rows = wanted.double(), rows.double()
    rows = rows / rows.norm(dim=1, keepdim=True).clamp_min(1e-300)  # of fp32 that bound is zero
    # The search itself then has as many numbers as there are rows.
    sizes, axes = torch.linalg.eigh(rows @ rows.T)
    clear = sizes > ROUNDING * sizes[-1]
    if not bool(clear.any()):
        return 1.0
    sizes, axes = sizes[clear].sqrt(), axes[:, clear]
    within = axes.T @ (rows @ wanted) / sizes
    _, distance = scipy.optimize.nnls((sizes * axes).T.numpy(), within.numpy())
    whole = float(wanted.square().sum())
    return (distance**2 + max(0.0, whole - float(within.square().sum()))) / max(whole, 1e-300)
