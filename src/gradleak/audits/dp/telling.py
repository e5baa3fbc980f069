"""How well noisy updates tell apart which of several candidates was in the batch, and what that says of the noise.

Every update was made of the same batch but for one example, drawn from a list. Noise of the promised size leaves some
chance to tell which. With independent Gaussian noise the best guess goes by inner products with the candidates'
gradients, each tensor weighed by its noise; the noise itself is measured on the updates, so that tensors which got
too little of it count for more. What is learnt for that is learnt on one half of the updates and used on the other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

Tensors = Mapping[str, Tensor]

HALVES = 2
# Beyond this there is no noise to speak of.
MOST_LOSS = 1e4
# The fewest updates with a candidate in them that a distance is taken from.
LEAST_VALUES = 8
# Entries that a tensor must have for its noise to be compared with another's, and the cosine from which they are one.
LEAST_ENTRIES, ALIKE = 64, 0.7
# Noise below this part of the largest counts as this much, so that rounding does not decide.
TINY = 1e-6


@dataclass
class _Half:
    """Sums over the updates of one half, of every tensor."""

    products: list[Tensor] = field(default_factory=list)
    """Of every update, the inner products of its tensors with the candidates' gradients, (tensors, candidates)."""
    inside: list[int] = field(default_factory=list)
    squares: Tensor | None = None
    total: dict[str, Tensor] = field(default_factory=dict)


class Telling:
    """Collects updates, each with the number of the candidate that was in it; only sums of them are kept."""

    def __init__(self, gradients: Sequence[Tensors]) -> None:
        self.names = [name for name in gradients[0] if all(name in own for own in gradients)]
        self.gradients = {
            name: torch.stack([own[name].flatten().double() for own in gradients]) for name in self.names
        }
        self.sizes = torch.tensor([float(self.gradients[name].shape[1]) for name in self.names], dtype=torch.double)
        self._halves = [_Half() for _ in range(HALVES)]
        self._first: list[Tensors] = []

    def add(self, update: Tensors, inside: int) -> None:
        half = self._halves[sum(len(each.inside) for each in self._halves) % HALVES]
        flat = {name: update[name].detach().flatten().double().cpu() for name in self.names}
        half.products.append(torch.stack([self.gradients[name] @ flat[name] for name in self.names]))
        half.inside.append(inside)
        squares = torch.stack([own.square().sum() for own in flat.values()])
        half.squares = squares if half.squares is None else half.squares + squares
        for name, own in flat.items():
            half.total[name] = half.total[name] + own if name in half.total else own
        if len(self._first) < 2:
            self._first.append(flat)

    @property
    def updates(self) -> int:
        return sum(len(half.inside) for half in self._halves)

    def right(self) -> int:
        """How many updates are told right: the candidate that was in it is the likeliest."""
        return sum(
            int((likelihoods.argmax(dim=1) == torch.tensor(inside)).sum()) for likelihoods, inside in self._judged()
        )

    def loss(self) -> tuple[float, float] | None:
        """Of two candidates: by how many deviations of the noise each moves an update, and the error of that.

        That is half the distance between what they look like along the line that tells them apart. The noise along it
        is taken for Gaussian, as sums of many independent numbers are. None of more candidates, or too few updates.
        """
        sides = [
            [values[torch.tensor(inside) == candidate] for candidate in (0, 1)]
            for likelihoods, inside in self._judged()
            for values in [likelihoods[:, 0] - likelihoods[:, 1]]
            if likelihoods.shape[1] == 2
        ]
        if not sides or any(len(values) < LEAST_VALUES for pair in sides for values in pair):
            return None
        found = [_distance(*pair) for pair in sides]
        loss = sum(each for each, _ in found) / len(found)
        return loss, math.hypot(*(error for _, error in found)) / len(found)

    def noise(self) -> dict[str, float]:
        """The standard deviation of every tensor's entries over all updates; candidates' differences are in it."""
        sums = [half.squares for half in self._halves if half.squares is not None]
        squares = torch.stack(sums).sum(dim=0)
        halves = [half.total for half in self._halves if half.total]
        totals = [torch.stack([half[name] for half in halves]).sum(dim=0) for name in self.names]
        return dict(zip(self.names, self._deviations(squares, totals, self.updates).tolist(), strict=True))

    def repeated(self) -> list[tuple[str, str]]:
        """Pairs of tensors of one shape that got the same noise: what two updates differ by is the same in both."""
        if len(self._first) < 2:
            return []
        differences = {name: self._first[0][name] - self._first[1][name] for name in self.names}
        return [
            (one, other)
            for number, one in enumerate(self.names)
            for other in self.names[:number]
            if len(differences[one]) == len(differences[other]) >= LEAST_ENTRIES
            and abs(_cosine(differences[one], differences[other])) > ALIKE
        ]

    def _deviations(self, squares: Tensor, totals: Sequence[Tensor], updates: int) -> Tensor:
        within = squares - torch.stack([total.square().sum() for total in totals]) / updates
        return (within.clamp_min(0) / max(1, updates - 1) / self.sizes).sqrt()

    def _judged(self) -> list[tuple[Tensor, list[int]]]:
        """The candidates' likelihoods in the updates of each half, by what the other taught; and who was in them."""
        both = (self._halves, self._halves[::-1])
        return [
            (self._likelihoods(learnt, asked), asked.inside)
            for learnt, asked in both
            if asked.inside and len(learnt.inside) > 1
        ]

    def _likelihoods(self, learnt: _Half, asked: _Half) -> Tensor:
        """Of every candidate in every update, (updates, candidates), up to what all have in common."""
        assert learnt.squares is not None
        deviations = self._deviations(learnt.squares, [learnt.total[name] for name in self.names], len(learnt.inside))
        floor = TINY * deviations.max().clamp_min(1e-300)
        weights = torch.where(deviations > 0, deviations.clamp_min(floor).pow(-2), 0.0)
        products = torch.stack(learnt.products)
        middle = products.mean(dim=0)
        gram = sum(
            weight * self.gradients[name] @ self.gradients[name].T
            for weight, name in zip(weights, self.names, strict=True)
        )
        assert isinstance(gram, Tensor)
        scale = _scale((products - middle).mul(weights[:, None]).sum(dim=1), gram, learnt.inside)
        seen = (torch.stack(asked.products) - middle).mul(weights[:, None]).sum(dim=1)
        # `middle` holds the mean over candidates already, so what a candidate adds is its own less that mean.
        return scale * (seen - scale * (gram.diagonal() / 2 - gram.mean(dim=0)))


def _distance(one: Tensor, other: Tensor) -> tuple[float, float]:
    """Half the distance between two sets of numbers, in deviations within a set, and its standard error."""
    count = len(one) + len(other)
    within = (one - one.mean()).square().sum() + (other - other.mean()).square().sum()
    apart = abs(float(one.mean() - other.mean())) / 2
    loss = apart / max(float((within / (count - 2)).sqrt()), apart / MOST_LOSS, 1e-300)
    return loss, math.sqrt((1 / len(one) + 1 / len(other)) / 4 + loss**2 / (2 * (count - 2)))


def _scale(seen: Tensor, gram: Tensor, inside: Sequence[int]) -> float:
    """By which multiple of its gradient a candidate's presence shows, by least squares over what it should change."""
    expected = gram[list(inside)] - gram.mean(dim=0)
    return float((seen * expected).sum() / expected.square().sum().clamp_min(1e-300))


def _cosine(one: Tensor, other: Tensor) -> float:
    return float(one @ other / (one.norm() * other.norm()).clamp_min(1e-300))
