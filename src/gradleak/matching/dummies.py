"""What an engine evaluates: rows of guessed batches, each matched against the gradient of one update."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Dummies:
    """R guesses at once. A row is one whole client batch of B sentences, padded on the right to n tokens.

    embeds: (R, B, n, d) word embeddings
    mask:   (R, B, n) which positions are real
    labels: (R, B) classes, or (R, B, n) token ids for causal language models
    target: (R,) which update each row is matched against
    """

    embeds: Tensor
    mask: Tensor
    labels: Tensor
    target: Tensor

    def __len__(self) -> int:
        return len(self.embeds)

    def row(self, index: int) -> Dummies:
        """One row alone, detached."""
        return Dummies(*(f.detach()[index : index + 1] for f in self._fields))

    def with_embeds(self, embeds: Tensor) -> Dummies:
        """The same rows with other embeddings."""
        return Dummies(embeds, self.mask, self.labels, self.target)

    def repeat(self, times: int) -> Dummies:
        """Every row so many times, next to each other."""
        return Dummies(*(torch.repeat_interleave(f, times, dim=0) for f in self._fields))

    @property
    def _fields(self) -> tuple[Tensor, ...]:
        return (self.embeds, self.mask, self.labels, self.target)
