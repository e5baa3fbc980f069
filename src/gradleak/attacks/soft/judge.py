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
# Logarithms of probabilities and shares are limited too: one odd token must not outweigh a sentence.
UNLIKELY = -15.0
SHARES = (-0.5, 1.5)
RIDGE = 2.0


@dataclass(frozen=True)
class Judge:
    """The weights of the evidence."""

    means: Tensor
    deviations: Tensor
    weights: Tensor
    constant: float
    few: Tensor
    """Weights of log-probability, share and 1 where there are no scores: to choose what is looked at more closely."""

    def __call__(self, scores: Tensor, usual: Tensor, log_probs: Tensor, shares: Tensor) -> Tensor:
        """The log-likelihood ratio; scores and usual are (…, spots), the others (…)."""
        evidence = (features(scores, usual, log_probs, shares) - self.means) / self.deviations
        return (evidence @ self.weights + self.constant).float()

    def without_states(self, log_probs: Tensor, shares: Tensor) -> Tensor:
        return self.few[0] * log_probs.clamp_min(UNLIKELY) + self.few[1] * shares.clamp(*SHARES) + self.few[2]


def features(scores: Tensor, usual: Tensor, log_probs: Tensor, shares: Tensor) -> Tensor:
    """All evidence in a row, (…, features). `usual` are the scores of the same token after nonsense.

    A token that stands in the batch several times fits everywhere a little, so what counts is how much better.
    """
    plain = scores.clamp(LEAST, MOST)
    better = (scores - usual).clamp(-MOST, MOST)
    labels = torch.stack([log_probs.clamp_min(UNLIKELY), shares.clamp(*SHARES)], dim=-1).to(plain)
    return torch.cat([plain, (plain - LEAST + 1).log(), better, labels], dim=-1).double()


def learn(scores: Tensor, usual: Tensor, log_probs: Tensor, shares: Tensor, right: Tensor) -> Judge:
    """The judge that tells right tokens from wrong ones best.

    >>> generator = torch.Generator().manual_seed(0)
    >>> right = torch.arange(400) % 2 == 0
    >>> scores = torch.randn(400, 3, generator=generator) + 4.0 * right[:, None]
    >>> others = torch.zeros(400, 3), torch.zeros(400), torch.zeros(400)
    >>> judge = learn(scores, *others, right)
    >>> guessed = judge(scores, *others) > 0
    >>> bool((guessed == right).float().mean() > 0.95)
    True
    """
    evidence = features(scores, usual, log_probs, shares)
    means, deviations = evidence.mean(dim=0), evidence.std(dim=0).clamp_min(1e-6)
    fitted = logistic((evidence - means) / deviations, right, RIDGE)
    labels = evidence[:, -2:]
    few = logistic(labels, right, RIDGE)
    return Judge(means, deviations, fitted[:-1], float(fitted[-1]), few.float())
