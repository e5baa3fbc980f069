"""How much of a sentence's gradient is in an update: cosines in whitened space, by kind of matrix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from gradleak.attacks.evidence.whitening import Whitening, turned
from gradleak.matching.factored import Factors

# Powers that singular values are taken to, and how far AdamW's division by each number's size is undone.
POWERS, UNDONE = (0.5, 1.0, 1.5), (1.0, 0.5)
# Rows that are made floats at once.
AT_ONCE = 32


class Way(NamedTuple):
    """How an update is made a direction: its singular values to minus a power, its division undone to a degree."""

    power: float
    undone: float


@dataclass
class Scorer:
    """Scores rows of gradients against updates; one number for every kind of matrix.

    `groups` names the kind of every matrix. `typical` is the size that AdamW divided every number by, as public text
    has it, or None if the client divided by nothing. `ways` says how each kind is scored.
    """

    whitening: Whitening
    groups: Sequence[str]
    typical: Tensor | None = None
    ways: Mapping[str, Way] = field(default_factory=dict)

    @property
    def kinds(self) -> list[str]:
        return list(dict.fromkeys(self.groups))

    @property
    def possible(self) -> list[Way]:
        """All ways there are."""
        return [Way(power, undone) for undone in (UNDONE if self.typical is not None else (1.0,)) for power in POWERS]

    def direction(self, update: Tensor) -> Tensor:
        """What rows are multiplied with to be scored against an update, each kind in its own way."""
        return self.directions(update, [self.ways])[0]

    def directions(self, update: Tensor, choices: Sequence[Mapping[str, Way]]) -> list[Tensor]:
        """The same for several choices of ways."""
        undone = {way.undone for ways in choices for way in ways.values()}
        parts = {degree: self.whitening.parts(self._undone(update, degree)[None]) for degree in undone}
        found = []
        for ways in choices:
            aims = []
            for number, (group, root) in enumerate(zip(self.groups, self.whitening.roots, strict=True)):
                way = ways[group]
                aims.append(root.times(turned(parts[way.undone][number][0], way.power)).flatten())
            found.append(torch.cat(aims))
        return found

    def _undone(self, update: Tensor, degree: float) -> Tensor:
        return update if self.typical is None else update * self.typical**degree

    def scores(self, rows: Tensor, sizes: Tensor, directions: Sequence[Tensor]) -> Tensor:
        """Cosines with each of these directions, (directions, rows, kinds).

        Rows are kept in half precision and are many: they are made floats once for all directions, some at a time.
        """
        kinds, aims = self.kinds, torch.stack(list(directions), dim=1)
        total = torch.zeros(len(rows), len(kinds), aims.shape[1])
        for start in range(0, len(rows), AT_ONCE):
            some, first = rows[start : start + AT_ONCE].float(), 0
            for (height, width), group in zip(self.whitening.shapes, self.groups, strict=True):
                last = first + height * width
                total[start : start + AT_ONCE, kinds.index(group)] += some[:, first:last] @ aims[first:last]
                first = last
        return (total / sizes.clamp_min(1e-30)[..., None]).permute(2, 0, 1)


def sizes_of(factors: Sequence[Factors], whitening: Whitening, groups: Sequence[str]) -> Tensor:
    """The norm of whitened gradients, (rows, kinds): what a score is divided by, so that long rows do not win.

    A short sentence has few tokens and long sides: its factors are whitened with far less work than its matrix.
    """
    kinds = list(dict.fromkeys(groups))
    squares = torch.zeros(len(factors[0].left), len(kinds))
    for own, root, group in zip(factors, whitening.roots, groups, strict=True):
        if own.left.shape[1] < min(own.left.shape[2], own.right.shape[2]):
            sides = [(own.left.float().cpu(), root.left), (own.right.float().cpu(), root.right)]
            parts = [side if by is None else side @ by for side, by in sides]
            left, right = (part @ part.transpose(1, 2) for part in parts)
            found = (left * right).sum(dim=(1, 2)).clamp_min(0)
        else:
            found = root.times(own.dense().float().cpu()).square().sum(dim=(1, 2))
        squares[:, kinds.index(group)] += found
    return squares.sqrt()
