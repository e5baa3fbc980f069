"""The mean of several clients' updates: what a server works with, and all it sees under secure aggregation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from torch import Tensor


class Mean:
    """The running mean of updates, tensor by tensor over the clients that sent it.

    >>> import torch
    >>> mean = Mean()
    >>> mean.add({"a": torch.tensor(1.0), "b": torch.tensor(4.0)})
    >>> mean.add({"a": torch.tensor(3.0)})
    >>> mean.value()
    {'a': tensor(2.), 'b': tensor(4.)}
    """

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}
        self.counts: Counter[str] = Counter()

    def add(self, tensors: Mapping[str, Tensor]) -> None:
        for name, tensor in tensors.items():
            self.sums[name] = self.sums[name] + tensor if name in self.sums else tensor
            self.counts[name] += 1

    def value(self) -> dict[str, Tensor]:
        return {name: total / self.counts[name] for name, total in self.sums.items()}
