"""What the coefficients of a sentence's beginning say of it: a log-likelihood ratio, learned on rehearsals.

A token's coefficients come from its own prediction and from all later ones. A right beginning lacks the later ones,
so that its last tokens are hardly alike, and those some places back nearly fully. In a beginning that strayed into
another sentence tokens far back are not as alike as they would be, and the last ones not at all.
"""

from __future__ import annotations

import bisect
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from gradleak.attacks.logistic import logistic
from gradleak.attacks.soft.coefficients import Coefficients, Match

# Lags up to each of these are taken together, and all above.
LAGS = (0, 1, 2, 4, 8)
# Cosines above this one count apart: a wrong token's hardly ever get there.
HIGH = 0.5
# Beginnings of every rehearsed sentence that are shown, right and wrong ones; tokens of the shortest.
SHOWN, SHORTEST = 4, 4
RIDGE = 2.0

Rows = Sequence[Sequence[int]]


class Reach(NamedTuple):
    """The log-likelihood ratio of the beginning that coefficients speak for most, and how many tokens it has."""

    value: float
    tokens: int


NOT_COMPARED = Reach(float("-inf"), 0)


@dataclass(frozen=True)
class Likeness:
    """The weights of what a token's coefficients show, at each lag."""

    weights: Tensor

    def tokens(self, match: Match) -> Tensor:
        """The log-likelihood ratio of every token that was compared: at its right place against anywhere else."""
        return _features(match) @ self.weights[:-1] + self.weights[-1]

    def reach(self, match: Match, size: int) -> Reach:
        """How far the coefficients of a sentence of so many tokens speak for it."""
        sums = self.tokens(match).cumsum(dim=0)
        if not len(sums) or float(sums.max()) <= 0:
            return Reach(0.0, 0)
        return Reach(float(sums.max()), size - 1 - match.lags[int(sums.argmax())])


def _features(match: Match) -> Tensor:
    """For every token its lag, its cosine at that lag, and what this has above a half, (tokens, features)."""
    shown = torch.zeros(len(match.cosines), len(LAGS) + 1, 3, dtype=torch.float64)
    for number, (cosine, lag) in enumerate(zip(match.cosines, match.lags, strict=True)):
        values = [1.0, cosine, max(0.0, cosine - HIGH)]
        shown[number, bisect.bisect_left(LAGS, lag)] = torch.tensor(values, dtype=torch.float64)
    return shown.flatten(1)


def examples(coefficients: Coefficients, rows: Rows, chance: random.Random) -> tuple[Tensor, Tensor]:
    """What tokens of right and strayed beginnings of a rehearsed batch show, and which stand at their right place."""
    asked = [each for row in rows if len(row) > SHORTEST for each in _beginnings(row, rows, chance)]
    if not asked:
        return torch.zeros(0, 3 * (len(LAGS) + 1), dtype=torch.float64), torch.zeros(0, dtype=torch.bool)
    features, right = [], []
    for (tokens, until), match in zip(asked, coefficients.matches([tokens for tokens, _ in asked]), strict=True):
        features.append(_features(match))
        # A token's own prediction must be right too.
        right.append(torch.tensor([len(tokens) - 1 - lag < until for lag in match.lags], dtype=torch.bool))
    return torch.cat(features), torch.cat(right)


def learn(features: Tensor, right: Tensor) -> Likeness:
    """The weights that tell right places from wrong ones; how many examples there are of each counts for nothing."""
    weights = logistic(features, right, RIDGE)
    share = right.double().mean().clamp(0.01, 0.99)
    weights[-1] -= (share / (1 - share)).log()
    return Likeness(weights)


def _beginnings(row: Sequence[int], rows: Rows, chance: random.Random) -> list[tuple[list[int], int]]:
    """Beginnings of a sentence, right ones and some that go on with a piece of another, and how far each is right."""
    found: list[tuple[list[int], int]] = []
    for _ in range(SHOWN):
        size = chance.randrange(SHORTEST, len(row) + 1)
        found.append((list(row[:size]), size))
        strays = chance.randrange(1, size)
        found.append(([*row[:strays], *_piece(rows, row[strays], size - strays, chance)], strays))
    return found


def _piece(rows: Rows, other: int, size: int, chance: random.Random) -> list[int]:
    """So many tokens of the batch one after another, over ends of sentences too, that do not begin with this one."""
    every = [token for row in rows for token in row]
    start = chance.choice([n for n, token in enumerate(every) if token != other] or [0])
    return [every[(start + n) % len(every)] for n in range(size)]
