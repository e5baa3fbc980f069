"""Implementations of DP-SGD with a mistake each, as they occur; none of them imports Opacus."""

from __future__ import annotations

import torch
from pydantic import Field

from gradleak.clients.training import plain_gradient
from gradleak.defenses.base import Defense, Promise


class HandMade(Defense):
    """Right: every sentence's gradient is clipped, noise is added to the sum, and the sum is divided once."""

    summary = "DP-SGD by hand"
    reveals = "everything"
    clips, lossy = True, False

    clip: float = Field(1.0, gt=0)
    noise: float = Field(1.0, gt=0)

    def promise(self):
        return Promise(self.noise)

    def noise_std(self, rule, examples):
        return self.noise * self.clip / examples

    def __str__(self):
        return f"{type(self).__name__}:clip={self.clip},noise={self.noise}"

    def gradient(self, generator):
        def private(model, batch, targets, names):
            rows = [
                plain_gradient(model, batch.part(slice(i, i + 1)), targets[i : i + 1], names)
                for i in range(len(batch))
            ]
            total = self.clipped_sum(rows)
            return {
                name: (tensor + self.deviation(name, rows) * self.drawn(tensor, name, generator)) / len(rows)
                for name, tensor in total.items()
            }

        return private

    def clipped_sum(self, rows):
        return added([scaled(row, self.clip) for row in rows])

    def deviation(self, name, rows):
        return self.noise * self.clip

    def drawn(self, tensor, name, generator):
        return torch.randn(tensor.shape, generator=generator)


class Unclipped(HandMade):
    """Forgets to clip."""

    def clipped_sum(self, rows):
        return added(rows)


class BatchClipped(HandMade):
    """Clips the mean of the batch, not every sentence."""

    def clipped_sum(self, rows):
        mean = scaled({name: tensor / len(rows) for name, tensor in added(rows).items()}, self.clip)
        return {name: len(rows) * tensor for name, tensor in mean.items()}


class GroupClipped(HandMade):
    """Clips every parameter by itself to the norm of the whole, with noise for one of them."""

    def clipped_sum(self, rows):
        return added([{name: scaled({name: row[name]}, self.clip)[name] for name in row} for row in rows])


class SeedReused(HandMade):
    """Draws the noise from the same seed every time."""

    def drawn(self, tensor, name, generator):
        return torch.randn(tensor.shape, generator=torch.Generator().manual_seed(len(name)))


class DividedTwice(HandMade):
    """Divides the noise by the batch size, and then the noisy sum once more."""

    def deviation(self, name, rows):
        return self.noise * self.clip / len(rows)


MISTAKES = (Unclipped, BatchClipped, GroupClipped, SeedReused, DividedTwice)


def norm(row):
    return float(torch.stack([tensor.square().sum() for tensor in row.values()]).sum().sqrt())


def scaled(row, clip):
    factor = min(1.0, clip / max(norm(row), 1e-12))
    return {name: factor * tensor for name, tensor in row.items()}


def added(rows):
    return {name: torch.stack([row[name] for row in rows]).sum(dim=0) for name in rows[0]}
