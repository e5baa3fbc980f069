"""What an engine evaluates: rows of guessed batches, each matched against the gradient of one update."""

from __future__ import annotations

from collections.abc import Sequence
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

    @property
    def widths(self) -> Tensor:
        """The longest sentence of every row, (R,)."""
        return self.mask.sum(dim=2).amax(dim=1)

    def row(self, index: int) -> Dummies:
        """One row alone, detached."""
        return self.take(slice(index, index + 1))

    def take(self, rows: Tensor | slice) -> Dummies:
        """Some rows, detached."""
        return Dummies(*(f.detach()[rows] for f in self._fields))

    def crop(self, width: int) -> Dummies:
        """The same rows without the positions from `width` on."""
        labels = self.labels[:, :, :width] if self.labels.dim() == 3 else self.labels
        return Dummies(self.embeds[:, :, :width], self.mask[:, :, :width], labels, self.target)

    def with_embeds(self, embeds: Tensor) -> Dummies:
        """The same rows with other embeddings."""
        return Dummies(embeds, self.mask, self.labels, self.target)

    def repeat(self, times: int) -> Dummies:
        """Every row so many times, next to each other."""
        return Dummies(*(torch.repeat_interleave(f, times, dim=0) for f in self._fields))

    @staticmethod
    def concatenate(parts: Sequence[Dummies]) -> Dummies:
        """The rows of all parts, one after the other."""
        return Dummies(*(torch.cat(fields) for fields in zip(*(p._fields for p in parts), strict=True)))

    @property
    def _fields(self) -> tuple[Tensor, ...]:
        return (self.embeds, self.mask, self.labels, self.target)
