"""How much of an update an answer explains, beyond what random words explain.

Gradients of different sentences are alike: on some models random words have most of the truth's. What tells an answer
from gibberish is how little it leaves over of what random words leave over.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gradleak.matching.dummies import Dummies
from gradleak.matching.engine import Engine
from gradleak.models.text import TextModel


def explained(distance: float, guessing: float) -> float:
    """1 where nothing is left over, 0 where as much as random words leave over, or more.

    A distance is of squares, so its root says by how much what is left over has shrunk.

    >>> [round(explained(distance, 0.5), 2) for distance in (0.0, 0.005, 0.125, 0.5, float("inf"))]
    [1.0, 0.9, 0.5, 0.0, 0.0]
    """
    if not distance < guessing:
        return 0.0
    return 1.0 - (max(distance, 0.0) / guessing) ** 0.5  # rounding may push a distance of zero a little below it


def guess_distances(engine: Engine, model: TextModel, frame: Dummies, fixed: Tensor) -> Tensor:
    """The distance of random words in every row's free positions, (rows,): one pass.

    They are the same whatever rows are around, and depend on nothing but the lengths.
    """
    ids = model.text_tokens.nonzero()[:, 0].cpu()
    tokens = torch.zeros(fixed.shape, dtype=torch.long)
    for row, places in zip(tokens, (~fixed).cpu(), strict=True):
        generator = torch.Generator().manual_seed(0)
        row[places] = ids[torch.randint(len(ids), (int(places.sum()),), generator=generator)]
    tokens = tokens.to(fixed.device)
    embeds = torch.where(fixed[..., None], frame.embeds, model.embed(tokens).to(frame.embeds))
    labels = torch.where(fixed, frame.labels, tokens) if model.goal.autoregressive else frame.labels
    return engine.values(Dummies(embeds, frame.mask, labels, frame.target))
