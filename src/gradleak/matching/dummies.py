"""What an engine evaluates: rows of guessed batches, each matched against the gradient of one update."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Dummies:
    """R guesses at once. A row is one whole client batch of B sentences, padded on the right to n tokens.

    embeds: (R, B, n, d) token embeddings
    mask:   (R, B, n) which positions are real
    labels: the targets of the model's task: whole numbers (R, B) or (R, B, n), or other numbers of each sentence
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
        return self._each(lambda field: field.detach()[rows])

    def crop(self, width: int) -> Dummies:
        """The same rows without the positions from `width` on."""
        # Targets of positions are whole numbers; other numbers are those of a sentence.
        by_position = self.labels.dim() > 2 and not self.labels.is_floating_point()
        labels = self.labels[:, :, :width] if by_position else self.labels
        return replace(self, embeds=self.embeds[:, :, :width], mask=self.mask[:, :, :width], labels=labels)

    def with_embeds(self, embeds: Tensor) -> Dummies:
        """The same rows with other embeddings."""
        return replace(self, embeds=embeds)

    def repeat(self, times: int) -> Dummies:
        """Every row repeated `times` times, next to each other."""
        return self._each(lambda field: torch.repeat_interleave(field, times, dim=0))

    @staticmethod
    def concatenate(parts: Sequence[Dummies]) -> Dummies:
        """The rows of all parts, one after the other."""

        def joined(name: str) -> Tensor:
            return torch.cat([getattr(part, name) for part in parts])

        return Dummies(joined("embeds"), joined("mask"), joined("labels"), joined("target"))

    def to(self, device: torch.device) -> Dummies:
        """The same on another device."""
        return self._each(lambda field: field.to(device))

    def _each(self, change: Callable[[Tensor], Tensor]) -> Dummies:
        return Dummies(change(self.embeds), change(self.mask), change(self.labels), change(self.target))
