"""A sentence around an anchor as shares: how much of each token stands at each position.

What came back at an anchor's query is a smooth function of these shares, and those of the right sentence are zeros
and ones. Starting from the shares of the whole batch, steps of Gauss and Newton mostly get there, so that no sentence
has to be guessed. They are taken in the logarithms of the shares: none gets negative, and what is unlikely stays so
until it is needed. Other anchors whose shares have grown are tokens of the same sentence, and are fitted along.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from gradleak.attacks.spans.first_layer import Anchor
from gradleak.core.budget import Budget

STEPS = 40
# The damping of a step, as a share of what is left unexplained, and at least, as fp32 has no more.
DAMPING, LEAST_DAMPING = 0.03, 1e-7
# A step changes the logarithm of a share by no more than this.
LONGEST = 2.0
# Shares below this are given up, every few steps.
GIVEN_UP, EVERY = 1e-6, 3
# After some steps, so many other anchors of at least this share are fitted along.
ALONE, JOINED, MOST_JOINED = 16, 0.8, 3
# A sentence is found where no more than this is left unexplained.
FOUND = 1e-6


class Places(NamedTuple):
    """Tokens, by their numbers, at positions, with the share of each; `anchors` says which may be fitted along.

    Where shares are right, all `sums`, (sums, places), are zero but the last, which is one: a sentence has one end,
    and one token at every position before it.
    """

    positions: Tensor
    tokens: Tensor
    shares: Tensor
    anchors: Tensor
    sums: Tensor

    def among(self, kept: Tensor) -> Places:
        return Places(*(each[..., kept] for each in self))


def places_of(weights: Tensor, anchors: Tensor, end: int) -> Places:
    """From (positions, tokens) weights, zero where a token cannot stand; `end` is the number of the last token."""
    length = len(weights)
    ends = weights[:, end] / weights[:, end].sum()
    live = 1 - ends.cumsum(dim=0)  # whether the sentence goes on after a position
    inner = weights.clone()
    inner[:, end] = 0
    shares = live[:, None] * inner / inner.sum(dim=1, keepdim=True).clamp_min(1e-30)
    shares[:, end] = ends
    positions, tokens = (shares > 0).nonzero().T
    last = tokens == end
    place = torch.arange(length, device=weights.device)[:, None]
    sums = ((positions == place) & ~last).float() - ((positions > place) & last).float()
    return Places(
        positions,
        tokens,
        shares[positions, tokens],
        anchors[positions, tokens],
        torch.cat([sums, last[None].float()]),
    )


def relax(
    anchor: Anchor, places: Places, other: Callable[[int, int], Anchor], budget: Budget
) -> tuple[Places, float]:
    """Shares that explain an anchor, and what they leave unexplained; `other` gives the anchor of a number there."""
    left, known = float("inf"), dict[tuple[int, int], Anchor]()
    for step in range(STEPS):
        rows = [_rows(anchor, places)]
        left = rows[0][2]
        for where, share in _joined(places) if step >= ALONE else ():
            known[where] = known.get(where) or other(*where)
            rows.append(_rows(known[where], places, share))
        if max(own for *_, own in rows) < FOUND or budget.over:
            break
        places = _step(places, *(torch.cat(each) for each in zip(*(row[:2] for row in rows), strict=True)))
        if step % EVERY == EVERY - 1:
            places = places.among(places.shares > GIVEN_UP)
    return places, left


def _joined(places: Places) -> list[tuple[tuple[int, int], float]]:
    """The other anchors that are likeliest in the sentence: their numbers and positions, with their shares."""
    shares = torch.where(places.anchors, places.shares, 0.0)
    best = shares.topk(min(MOST_JOINED, len(shares)))
    where = zip(places.tokens[best.indices].tolist(), places.positions[best.indices].tolist(), strict=True)
    return [each for each in zip(where, best.values.tolist(), strict=True) if each[1] >= JOINED]


def _step(places: Places, slopes: Tensor, residual: Tensor) -> Places:
    off = places.sums @ places.shares
    off[-1] -= 1
    slopes, residual = torch.cat([slopes, places.sums]), torch.cat([residual, off])
    roots = places.shares.sqrt()
    scaled = slopes * roots
    damping = max(LEAST_DAMPING, DAMPING * float(residual.square().sum()))
    if len(slopes) <= len(roots):
        square = scaled @ scaled.T
        square.diagonal().add_(damping)
        change = -(slopes.T @ torch.linalg.solve(square, residual))
    else:
        square = scaled.T @ scaled
        square.diagonal().add_(damping)
        change = -torch.linalg.solve(square, scaled.T @ residual) / roots
    shares = places.shares * change.nan_to_num(0.0).clamp(-LONGEST, LONGEST).exp()
    return places._replace(shares=shares.clamp_min(1e-9))


def _rows(anchor: Anchor, places: Places, weight: float = 1.0) -> tuple[Tensor, Tensor, float]:
    """How what is explained changes with the shares, (numbers, places), what it is off by now, and that squared."""
    at = places.positions, places.tokens
    weights, keys = anchor.weights[at], anchor.keys[at]
    attended = places.shares[:, None] * weights
    total = attended.sum(dim=0)
    means, explained = [], []
    for table in (anchor.along, anchor.unknown):
        values = table[at]
        mean = (attended * values).sum(dim=0) / total
        means.append(mean)
        apart = places.shares[:, None] * (values - mean) / total
        explained.append(torch.einsum("nh,nhd->hd", apart, keys))
    own, unknown = explained
    size = unknown.square().sum().clamp_min(1e-30)
    multiple = ((anchor.wanted - own) * unknown).sum() / size
    residual = own + multiple * unknown - anchor.wanted
    apart = (anchor.along[at] + multiple * anchor.unknown[at] - means[0] - multiple * means[1]) / total
    key = torch.einsum("n,nhd->hd", places.shares, keys) / total[:, None]
    slopes = apart[..., None] * keys - weights[..., None] * (apart[..., None] * key + anchor.wanted / total[:, None])
    slopes, unit = slopes.flatten(1).T, (unknown / size.sqrt()).flatten()
    slopes = slopes - unit[:, None] * (unit @ slopes)
    left = float(residual.square().sum() / anchor.wanted.square().sum())
    return weight * slopes, weight * residual.flatten(), left
