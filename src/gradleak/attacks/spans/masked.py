"""What a first layer saw of tokens through dropout: which tokens, where, and which of their entries were dropped.

Dropout sets some entries of an input to zero, so it lies in the span of the gradient only with its mask, which nobody
knows. But it is a vector of the span all of whose entries are either zero or those of the token at its place. Most
are kept, so the combination of the basis that agrees with the token in as many entries as possible is the masked
input. It is found by least squares that trust entries less the farther off they are, and proved by rounding its mask:
the token's input under it must lie in the span.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gradleak.attacks.spans.candidates import first_inputs
from gradleak.attacks.spans.spans import Span
from gradleak.core.budget import Budget
from gradleak.models.text import TextModel

# Rounds of least squares, in which misses count less and less by their size, down to a share of what is usual.
ROUNDS, SOFTER, SHARPEST = 20, 0.6, 1e-5
# Entries are trusted by a power of their misses. With -1 the sum of misses is made least, which finds an input that
# is there once; below that few large ones are preferred to many small ones, which decides among copies.
SUM, FEW = -1.0, -1.5
# Another copy of an input must keep what those found before dropped, in the mean, for so many rounds; that counts so
# much more than a trusted entry.
APART_ROUNDS, APART = 10, 1e3
# Attempts in a row that may find no further input.
ATTEMPTS = 6
# An entry agrees if it is so near zero or the token's own, against the usual entry; inputs with this share of such
# entries are tried again from other starts.
NEAR, WORTH = 0.02, 0.6
# Rounds of fitting to masks, and how far off entries may be when it begins, against what is usual.
ROUNDINGS, ROUGH = 15, 0.05
# Inputs of which more is dropped than this are taken for chance: with nothing kept, any would lie in the span.
MOST_DROPPED = 0.5
# What makes least squares solvable, against the usual of its matrix.
RIDGE = 1e-12
# Inputs looked at together, times the dimensions of the span, squared.
AT_ONCE = 1 << 19


class MaskedInput(NamedTuple):
    """A token at a position as the first layer saw it, up to a factor that dropout gives all of them."""

    token: int
    position: int
    state: Tensor


def masked_inputs(
    model: TextModel, span: Span, tokens: Tensor, length: int, generator: torch.Generator, budget: Budget
) -> list[MaskedInput]:
    """All inputs of these tokens at the first positions, under any mask, that lie in the span of the first layer.

    A token that stood at the same place of several sentences is found once for each, as their masks differ. The
    search ends with as many inputs as the span has dimensions, when further starts find none, or with the budget.
    """
    states = first_inputs(model, tokens, length).to(span.basis).flatten(0, 1)
    search = _MaskSearch(span, states)
    portion = max(1, AT_ONCE // span.rank**2)
    for rows in torch.arange(len(states), device=states.device).split(portion):
        if budget.over:
            break
        search.attempt(rows)
    failures = 0
    while failures < ATTEMPTS and search.count < span.rank and not budget.over:
        before = search.count
        for rows in search.worth_trying.split(portion):
            search.attempt(rows, generator)
        failures = 0 if search.count > before else failures + 1
    return [
        MaskedInput(int(tokens[row // length]), row % length, states[row] * mask)
        for row, masks in sorted(search.masks.items())
        for mask in masks
    ]


class _MaskSearch:
    """The masks found so far, by the row of the input that they hide."""

    def __init__(self, span: Span, states: Tensor) -> None:
        self.span, self.states = span, states
        self.masks: dict[int, list[Tensor]] = {}
        self._near = torch.zeros(len(states), dtype=torch.bool, device=states.device)

    @property
    def count(self) -> int:
        return sum(map(len, self.masks.values()))

    @property
    def worth_trying(self) -> Tensor:
        return self._near.nonzero()[:, 0]

    def attempt(self, rows: Tensor, generator: torch.Generator | None = None) -> None:
        """Look for a mask of each of these rows that was not found before, from random starts or from none."""
        states = self.states[rows]
        known = [self.masks.get(row, []) for row in rows.tolist()]
        dropped = states.new_zeros(len(rows), max(1, *map(len, known)), states.shape[1])
        for number, masks in enumerate(known):
            for copy, mask in enumerate(masks):
                dropped[number, copy] = (~mask).to(states)
        trust, power = torch.ones_like(states), torch.full_like(states[:, :1], SUM)
        if generator is not None:
            trust = torch.rand(states.shape, generator=generator, dtype=torch.float64).to(states)
            chosen = torch.rand(power.shape, generator=generator, dtype=torch.float64).to(power)
            power = torch.where(dropped.any(dim=2).any(dim=1, keepdim=True), FEW + (SUM - FEW) * chosen, power)
        seen = _agreeing(self.span.basis, states, trust, power, dropped)
        usual = states.square().mean(dim=1, keepdim=True).sqrt()
        agrees = torch.minimum(seen.abs(), (seen - states).abs()) < NEAR * usual
        self._near[rows] |= agrees.double().mean(dim=1) > WORTH
        kept = _rounded(self.span.basis, states, seen)
        masked = states * kept
        fits = self.span.distances(masked) <= self.span.limits(masked)
        fits &= kept.double().mean(dim=1) > 1 - MOST_DROPPED
        for number in fits.nonzero()[:, 0].tolist():
            own = self.masks.setdefault(int(rows[number]), [])
            if not any(torch.equal(kept[number], mask) for mask in own):
                own.append(kept[number])


def _rounded(basis: Tensor, states: Tensor, seen: Tensor) -> Tensor:
    """Which entries are kept: each round fits the vectors of the span to what they are nearest to, own or zero."""
    usual, softness = states.abs().mean(dim=1, keepdim=True), ROUGH
    for _ in range(ROUNDINGS):
        nearest = torch.where((seen - states).abs() < seen.abs(), states, 0.0)
        seen = _least_squares(basis, nearest, ((seen - nearest).abs() / usual + softness) ** SUM)
        softness = max(SOFTER * softness, SHARPEST)
    return (seen - states).abs() < seen.abs()


def _agreeing(basis: Tensor, states: Tensor, trust: Tensor, power: Tensor, elsewhere: Tensor) -> Tensor:
    """For each state a vector of the span that equals it in as many entries as possible.

    At first it must do so in the mean of the entries `elsewhere`, (states, means, width).

    >>> basis = torch.linalg.qr(torch.randn(40, 3, generator=torch.Generator().manual_seed(0)).double()).Q.T
    >>> state = basis[:1].clone()
    >>> state[0, :4] += 5
    >>> seen = _agreeing(basis, state, torch.ones_like(state), torch.tensor(SUM), torch.zeros(1, 1, 40).double())
    >>> bool((seen - basis[:1]).abs().max() < 1e-3)
    True
    """
    usual, softness = states.abs().mean(dim=1, keepdim=True), 0.1
    there = states[:, None] * elsewhere
    sizes = there.norm(dim=2, keepdim=True)
    along = (there / sizes.clamp_min(1e-300)) @ basis.T
    seen = states
    for number in range(ROUNDS):
        # A mean that must be kept to is one more entry to agree in.
        seen = _least_squares(basis, states, trust, (along, sizes) if number < APART_ROUNDS else None)
        softness = max(SOFTER * softness, SHARPEST)
        trust = ((states - seen).abs() / usual + softness) ** power
    return seen


def _least_squares(
    basis: Tensor, targets: Tensor, trust: Tensor, means: tuple[Tensor, Tensor] | None = None
) -> Tensor:
    """The vectors of a span nearest to the targets, entries counting by trust, with these means if possible."""
    weighted = trust[:, None] * basis
    products, sums = weighted @ basis.T, (weighted @ targets[..., None])[..., 0]
    usual = products.diagonal(dim1=1, dim2=2).mean(dim=1)[:, None, None]
    if means is not None:
        heavy = APART * usual * means[0]
        products, sums = products + heavy.mT @ means[0], sums + (heavy * means[1]).sum(dim=1)
    eye = torch.eye(len(basis), dtype=basis.dtype, device=basis.device)
    return torch.linalg.solve(products + RIDGE * usual * eye, sums) @ basis
