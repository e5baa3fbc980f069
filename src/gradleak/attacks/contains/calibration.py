"""From scores to a likelihood ratio and a false-alarm rate. Pure functions of numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.attacks.logistic import logistic

# How strongly the regression's weights are held near zero: rehearsals are few, and public text is not private text.
RIDGE = 1.0
# Likelihood ratios beyond this are a matter of the model's tails, which nobody has measured.
MOST_LOG_RATIO = math.log(1e6)
# Candidates from which their own lower scores say where sentences of their kind lie that were not in.
ENOUGH_CANDIDATES = 20
# The two quantiles they are judged by, and where a normal distribution has them.
QUANTILES, NORMAL = (0.1, 0.3), (-1.2816, -0.5244)


@dataclass(frozen=True)
class Regression:
    """A logistic regression of being a member, and the logarithm of the odds among its examples."""

    weights: Tensor
    bias: float
    log_odds: float

    def log_ratio(self, features: Tensor) -> Tensor:
        """The logarithm of how much likelier these features are for a member than for any other sentence."""
        return self.of_combined(features @ self.weights)

    def of_combined(self, scores: Tensor) -> Tensor:
        """The same of features that are already added up with their weights."""
        return (scores + self.bias - self.log_odds).clamp(-MOST_LOG_RATIO, MOST_LOG_RATIO)


def fitted(features: Tensor, members: Tensor) -> Regression:
    """Weights of standardised features, none negative: more of a sentence in an update never speaks against it.

    >>> found = fitted(torch.tensor([[3.0], [2.5], [0.1], [-0.2]]), torch.tensor([True, True, False, False]))
    >>> bool(found.log_ratio(torch.tensor([[3.0]])) > 0), bool(found.log_ratio(torch.tensor([[-1.0]])) < 0)
    (True, True)
    """
    wanted = members.double()
    free = torch.ones(features.shape[1], dtype=torch.bool)
    while True:  # a feature that would count against a sentence is left out, one at a time
        solved = logistic(features[:, free], members, RIDGE)
        weights, bias = solved[:-1], float(solved[-1])
        if not len(weights) or float(weights.min()) >= 0:
            break
        free[free.nonzero()[int(weights.argmin())]] = False
    full = torch.zeros(features.shape[1], dtype=torch.float64)
    full[free] = weights
    share = float(wanted.mean())
    return Regression(full.float(), bias, math.log(share / (1 - share)))


def told_apart(scores: Tensor, members: Tensor) -> float:
    """How often a member scores above another sentence.

    >>> told_apart(torch.tensor([3.0, 1.0, 2.0]), torch.tensor([True, False, True]))
    1.0
    """
    inside, outside = scores[members], scores[~members]
    above = (inside[:, None] > outside).double() + 0.5 * (inside[:, None] == outside).double()
    return float(above.mean()) if len(inside) and len(outside) else 0.5


def standardised(scores: Tensor, null: Tensor) -> Tensor:
    """Scores in spreads above the mean of those of sentences that were not in, column by column."""
    return (scores - null.mean(dim=0)) / null.std(dim=0).clamp_min(1e-30)


def false_alarm_rates(scores: Tensor, null: Tensor) -> Tensor:
    """For every score, how often a sentence that was not in scores as high, never below what their number can show.

    >>> false_alarm_rates(torch.tensor([5.0, 1.5]), torch.tensor([1.0, 2.0, 3.0])).tolist()
    [0.25, 0.75]
    """
    ordered = null.sort().values
    above = len(null) - torch.searchsorted(ordered, scores.contiguous())
    return (above + 1).double() / (len(null) + 1)


def moved_up(null: Tensor, candidates: Tensor) -> Tensor:
    """Scores of public sentences as sentences of the candidates' kind would have them, never lower than they are.

    Text of another kind than the client's scores lower than the client's kind does, in or not. So place and spread
    are taken from the candidates' lower scores, which are those of sentences that were not in unless most were; if
    most were, this errs towards confirming none.
    """
    if len(candidates) < ENOUGH_CANDIDATES:
        return null
    low, high = (float(candidates.quantile(q)) for q in QUANTILES)
    spread = max((high - low) / (NORMAL[1] - NORMAL[0]), float(null.std()))
    place = max(high - NORMAL[1] * spread, float(null.mean()))
    return place + (null - null.mean()) / null.std().clamp_min(1e-30) * spread


def confirmed(rates: Sequence[float | None], level: float) -> int:
    """How many candidates have a false-alarm rate of at most this level, each by itself."""
    return sum(rate is not None and rate <= level for rate in rates)
