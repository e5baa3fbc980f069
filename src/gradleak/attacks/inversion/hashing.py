"""Feature hashing: a long vector's coordinates are assigned to few bins by chance and added up there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import torch
from torch import Tensor


class Hashing:
    """Adds coordinate i of several named tensors, taken as a long vector, to bin r(i); r follows from the seed.

    >>> hashing = Hashing({"a": (2,), "b": (1, 2)}, bins=1, seed=0)
    >>> hashing.of({"a": torch.tensor([[1.0, 2.0]]), "b": torch.tensor([[[3.0, 4.0]]])}).tolist()
    [[10.0]]
    """

    def __init__(self, shapes: Mapping[str, Sequence[int]], bins: int, seed: int) -> None:
        self.bins = bins
        generator = torch.Generator().manual_seed(seed)
        # A draw per tensor, in the order of their names, so that the order of a dictionary does not matter.
        self.places = {
            name: torch.randint(bins, (torch.Size(shapes[name]).numel(),), generator=generator)
            for name in sorted(shapes)
        }

    def of(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """The bins of many vectors at once, (rows, bins); tensors are (rows, *shape), missing tensors are zero."""
        rows = len(next(iter(tensors.values())))
        first = next(iter(tensors.values()))
        # A row's bins stay in the processor's cache while its coordinates, read in order, are added to them.
        bins = torch.zeros(rows, self.bins, dtype=first.dtype, device=first.device)
        for name, tensor in tensors.items():
            bins.scatter_add_(1, self.places[name].to(first.device).expand(rows, -1), tensor.reshape(rows, -1))
        return bins

    @cached_property
    def sizes(self) -> Tensor:
        """How many coordinates each bin holds."""
        return sum(
            (torch.bincount(places, minlength=self.bins) for places in self.places.values()),
            start=torch.zeros(self.bins, dtype=torch.long),
        )

    def noise(self, rows: int, sigma: float, generator: torch.Generator) -> Tensor:
        """What noise of this size on every coordinate becomes in the bins: a bin of n coordinates gets √n of it."""
        return sigma * self.sizes.float().sqrt() * torch.randn(rows, self.bins, generator=generator)
