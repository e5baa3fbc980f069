"""Empty dummies of the right shape: special tokens in place, everything else free to be searched."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradleak.attacks.evidence.knowledge import Knowledge
from gradleak.matching.dummies import Dummies
from gradleak.models.text import TextModel


def empty_dummies(model: TextModel, knowledge: Sequence[Knowledge], owners: Sequence[int]) -> tuple[Dummies, Tensor]:
    """A row per guess, and (rows, sentences, positions) where nothing may change: special tokens and padding.

    `owners` has for every guess the number of the update it is about. All guesses have as many sentences.
    """
    shape = (len(knowledge), len(knowledge[0].lengths), max(max(known.lengths) for known in knowledge))
    mask = torch.zeros(shape, dtype=torch.bool)
    free = torch.zeros(shape, dtype=torch.bool)
    ids = torch.zeros(shape, dtype=torch.long)
    for k, known in enumerate(knowledge):
        for b, length in enumerate(known.lengths):
            last = length - len(model.suffix)
            mask[k, b, :length] = True
            free[k, b, len(model.prefix) : last] = True
            ids[k, b, : len(model.prefix)] = torch.tensor(model.prefix, dtype=torch.long)
            ids[k, b, last:length] = torch.tensor(model.suffix, dtype=torch.long)
    # A language model's labels are its own tokens, filled in as the search goes.
    outputs = model.goal.outputs(model)
    labels = torch.stack(
        [model.goal.targets(known.labels, own, outputs) for known, own in zip(knowledge, ids, strict=True)]
    )
    ids, mask, labels = (t.to(model.device) for t in (ids, mask, labels))
    embeds = model.embed(ids).masked_fill(~mask[..., None], 0.0)
    target = torch.tensor(owners, device=model.device)
    return Dummies(embeds, mask, labels, target), ~free.to(model.device)
