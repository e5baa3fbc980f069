"""Language priors: how natural a sequence of the target's tokens is, without looking at any gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from gradleak.core.budget import Budget
from gradleak.core.progress import SILENT, Progress
from gradleak.models.text import TextModel


class Prior(Protocol):
    """Scores and draws sentences. Tokens are the target model's, without special ones."""

    name: str

    def nll(self, sentences: Sequence[Sequence[int]]) -> Tensor:
        """Mean negative log-likelihood per token of every sentence, in nats."""
        ...

    def sample(self, length: int, generator: torch.Generator) -> list[int]:
        """A random sentence of `length` tokens."""
        ...


def load_prior(
    spec: str, model: TextModel, progress: Progress = SILENT, budget: Budget | None = None
) -> Prior | None:
    """The prior of that name for this target: "ngram", "none", or a causal language model by folder or hub id.

    N-grams are counted once for every tokenizer; if the budget ends meanwhile, the prior is made of what was counted.
    """
    if spec == "none":
        return None
    if spec == "ngram":
        from gradleak.priors.ngram import load_ngram

        return load_ngram(model, progress, budget)
    from gradleak.priors.causal import CausalPrior

    return CausalPrior.load(spec, model, progress)
