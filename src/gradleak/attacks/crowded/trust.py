"""How sure a sentence is that is not proved: how often wrong ones of a rehearsed batch look as right.

A wrong sentence that a search finds is nearly right. So wrong ones are made of the sentences of a public batch: with
another token somewhere, with another end, or without it. Its confidence is one less the share of those that look as
right as it does, by how much smaller the volume is without it for each prediction, and without its weakest token.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.attacks.crowded.volume import Batches, Products, Volume
from gradleak.attacks.soft.judge import fitted

# Sentences of the rehearsed batch of which wrong ones are made, and tokens that are cut off one at most.
ASKED, CUT = 12, 3


@dataclass(frozen=True)
class Trust:
    """What the fall of a volume is worth, and what it came to for wrong sentences."""

    weights: Tensor
    wrong: Tensor

    def confidence(self, falls: tuple[float, float]) -> float:
        """One less the rate at which wrong sentences look as right.

        >>> trust = Trust(torch.tensor([1.0, 0.0, 0.0]), torch.tensor([-1.0, 0.5, 0.7]))
        >>> trust.confidence((2.0, 0.0)), trust.confidence((0.6, 0.0))
        (0.75, 0.5)
        """
        score = float(torch.tensor(falls) @ self.weights[:-1] + self.weights[-1])
        return 1 - (1 + int((self.wrong >= score).sum())) / (1 + len(self.wrong))


def falls(volume: Volume, products: Sequence[Products]) -> list[tuple[float, float]]:
    """How much smaller a volume is without each of some sentences, for each prediction, and without its weakest."""
    every = zip(volume.gains(products), volume.weakest(products), products, strict=True)
    return [(gain / max(1, len(own[0][0])), weakest) for gain, weakest, own in every]


def learned_trust(
    volume: Volume, batches: Batches, rows: Sequence[Sequence[int]], bag: Sequence[int], seed: int
) -> Trust:
    """What falls are worth in an update that these rows made, whose weight is known."""
    chance = random.Random(seed)
    right = [tuple(row) for row in chance.sample(list(rows), len(rows)) if len(row) > CUT + 2][:ASKED]
    wrong: list[tuple[int, ...]] = []
    for row in right:
        place = chance.randrange(1, len(row) - 1)
        wrong.append((*row[:place], chance.choice(bag), *row[place + 1 :]))
        wrong.append((*row[:-1], chance.choice(bag)))
        wrong.append(row[: -chance.randint(1, CUT)])
    wrong = [row for row in wrong if row not in right]
    seen = torch.tensor(falls(volume, batches.products([*right, *wrong])))
    if not len(right):
        return Trust(torch.zeros(3), torch.zeros(0))
    weights = fitted(seen.double(), torch.arange(len(seen)) < len(right)).float()
    return Trust(weights, seen[len(right) :] @ weights[:-1] + weights[-1])
