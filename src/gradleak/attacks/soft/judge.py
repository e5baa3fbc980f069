"""One likelihood for a token after a prefix: how evidence of several kinds adds up, learned where the truth is known.

Evidence are the scores of its states at every spot, how much of the update it explains as a prediction, and how
likely the language model finds it. A logistic regression on rehearsed batches of public text weighs them; its value
is the logarithm of how much likelier the token is to have stood there than not.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.attacks.logistic import logistic

# Scores beyond these say no more.
LEAST, MOST = -3.0, 40.0
# Logarithms of probabilities are limited too: one odd token must not outweigh a sentence.
UNLIKELY = -15.0
RIDGE = 2.0


@dataclass(frozen=True)
class Judge:
    """The weights of the evidence."""

    weights: Tensor
    constant: float
    few: Tensor
    """Weights of log-probability, of what is explained and of 1 where there are no scores: to choose what is looked
    at more closely."""

    def __call__(self, scores: Tensor, usual: Tensor, log_probs: Tensor, explained: Tensor) -> Tensor:
        """The log-likelihood ratio; scores and usual are (…, spots), what is explained (…, features)."""
        return (features(scores, usual, log_probs, explained) @ self.weights + self.constant).float()

    def without_states(self, log_probs: Tensor, explained: Tensor) -> Tensor:
        return weighed(self.few, log_probs, explained)


def weighed(weights: Tensor, log_probs: Tensor, explained: Tensor) -> Tensor:
    """The log-likelihood ratio by log-probability and what is explained alone; the last weight is the constant."""
    return labels_of(log_probs, explained).to(weights) @ weights[:-1] + weights[-1]


def labels_of(log_probs: Tensor, explained: Tensor) -> Tensor:
    """What is known of a token as a prediction, (…, 1 + features)."""
    return torch.cat([log_probs.clamp_min(UNLIKELY)[..., None], explained], dim=-1)


def fitted(evidence: Tensor, right: Tensor) -> Tensor:
    """Weights of evidence (examples, features) as it is, and a constant; the regression sees all of one size."""
    means, deviations = evidence.mean(dim=0), evidence.std(dim=0).clamp_min(1e-6)
    weights = logistic((evidence - means) / deviations, right, RIDGE)
    own = weights[:-1] / deviations
    return torch.cat([own, (weights[-1] - (own * means).sum())[None]])


def features(scores: Tensor, usual: Tensor, log_probs: Tensor, explained: Tensor) -> Tensor:
    """All evidence in a row, (…, features). `usual` are the scores of the same token after nonsense.

    A token that stands in the batch several times fits everywhere a little, so what counts is how much better.
    """
    plain = scores.clamp(LEAST, MOST)
    better = (scores - usual).clamp(-MOST, MOST)
    labels = labels_of(log_probs, explained).to(plain)
    return torch.cat([plain, (plain - LEAST + 1).log(), better, labels], dim=-1).double()


def learn(scores: Tensor, usual: Tensor, log_probs: Tensor, explained: Tensor, right: Tensor) -> Judge:
    """The judge that tells right tokens from wrong ones best.

    >>> generator = torch.Generator().manual_seed(0)
    >>> right = torch.arange(400) % 2 == 0
    >>> scores = torch.randn(400, 3, generator=generator) + 4.0 * right[:, None]
    >>> others = torch.zeros(400, 3), torch.zeros(400), torch.zeros(400, 2)
    >>> judge = learn(scores, *others, right)
    >>> guessed = judge(scores, *others) > 0
    >>> bool((guessed == right).float().mean() > 0.95)
    True
    """
    whole = fitted(features(scores, usual, log_probs, explained), right)
    few = fitted(labels_of(log_probs, explained).double(), right)
    return Judge(whole[:-1], float(whole[-1]), few.float())


def untaught(explained: int) -> Judge:
    """Chooses what is looked at more closely while nothing is learned yet: by log-probability and the first share."""
    few = [1.0, *(8.0 if number == 0 else 0.0 for number in range(explained)), 0.0]
    return Judge(torch.zeros(0), 0.0, torch.tensor(few))
