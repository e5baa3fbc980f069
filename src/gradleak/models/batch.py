"""Sentences as a text model takes them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """Token ids of several sentences, padded on the right, and which of them are real."""

    ids: Tensor
    mask: Tensor

    @property
    def lengths(self) -> list[int]:
        return [int(n) for n in self.mask.sum(dim=1)]

    def __len__(self) -> int:
        return len(self.ids)

    def part(self, which: slice) -> Batch:
        """Some of the sentences."""
        return Batch(self.ids[which], self.mask[which])

    def apart(self, targets: Tensor) -> tuple[Batch, Tensor]:
        """What the model sees as sentences, and their targets: these rows as they are."""
        return self, targets

    def sentences(self) -> list[list[int]]:
        """The ids without padding."""
        return [row[keep].tolist() for row, keep in zip(self.ids, self.mask, strict=True)]
