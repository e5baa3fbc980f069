"""What the rows of a token embedding's or an output layer's gradient show of the tokens of a batch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor

# A row stands out if its norm is so many standard deviations larger than noise would make it.
CLEAR_ROW = 6.0
# A row so far below the largest is rounding.
ROW_NOISE = 1e-6
# If more rows than this share stand out, the table shows nothing: most tokens are in no batch.
MOST_ROWS = 0.5
# Rows up to so many times the median are small.
SMALL_ROW = 3.0
# With this leverage a row shapes the space itself, whatever chance gives in a small table.
OWN = 0.5
# Rows that are in float64 at a time.
AT_ONCE = 8192
# Under noise alone hardly a row is shorter than this share of the median, and usual rows have a smaller cosine to
# what they have in common.
EVEN, ALIKE = 0.9, 0.5
# Short rows of noise are less even: a quarter of them is 0.67 deviations shorter; twice that is allowed for.
UNEVEN = 1.35
# A row with this cosine to the states, or more, is that of a token that was expected and did not come. Measured on
# smollm2 and three sentences under noise: 0.22 and more for such tokens, 0.11 and less for the sentences' own.
EXPECTED = 0.2
# The mean of what stands out settles in a few rounds.
ROUNDS = 30

RowRule = Literal["norm", "film"]


def present_rows(table: Tensor, rule: RowRule = "norm") -> Tensor | None:
    """The rows of tokens that were in the batch; None if the table does not show them.

    Most tokens are in no batch, so the median row shows what noise alone gives. A token was there if its row is
    clearly longer (norm), or by the rule of the FILM paper, if its largest entry is larger than noise makes an entry
    of a row on average, which every fifth absent token passes too.

    >>> table = 0.1 * torch.randn(1000, 64, generator=torch.Generator().manual_seed(0))
    >>> table[[3, 7]] += 0.2
    >>> present_rows(table).tolist(), len(present_rows(table, "film")) > 100
    ([3, 7], True)
    """
    sizes, width = table.norm(dim=1), table.shape[1]
    usual = sizes.median()
    if rule == "film" and float(usual) > ROW_NOISE * float(sizes.max()):
        present = table.abs().amax(dim=1) > usual / width**0.5 * math.sqrt(2 * math.log(width))
    else:
        present = sizes > max(_longest(float(usual), width), ROW_NOISE * float(sizes.max()))
    return present.nonzero()[:, 0] if 0 < int(present.sum()) <= MOST_ROWS * len(table) else None


def clearly_longer(sizes: Tensor, usual: float, width: int) -> Tensor:
    """The rows, by their norms, that are longer than noise of a usual norm makes any of this width."""
    return (sizes > _longest(usual, width)).nonzero()[:, 0]


def _longest(usual: float, width: int) -> float:
    """The norm of the longest rows that noise makes."""
    return usual * (1 + CLEAR_ROW / (2 * width) ** 0.5)


def row_noise(table: Tensor) -> float:
    """The norm that noise gives every row of a token embedding's gradient, by all of them; 0 if no noise shows.

    Most tokens are in no batch. Without noise their rows are zero, or, if the table is also the output layer, sums of
    states, as unequal as the tokens' probabilities; where these are equal, as before any training, all rows point one
    way.
    """
    sizes = table.norm(dim=1)
    usual = float(sizes.median())
    if float(sizes.quantile(0.25)) <= min(EVEN, 1 - UNEVEN / (2 * table.shape[1]) ** 0.5) * usual:
        return 0.0
    cosines = (table.double() @ common_state(table)) / sizes.double().clamp_min(1e-300)
    return usual if float(cosines.median()) < ALIKE else 0.0


def leverages(table: Tensor) -> Tensor:
    """How much each row shapes the table's row space, 0 to 1.

    In the gradient of a table that is also the output layer every row is a mix of the batch's states. Tokens that
    were there have a state, or an output gradient, of their own in it; the others only a little of everything.

    >>> leverages(torch.tensor([[2.0, 0.0], [0.0, 3.0], [0.0, 0.0]])).tolist()
    [1.0, 1.0, 0.0]
    """
    products = table.new_zeros(table.shape[1], table.shape[1], dtype=torch.float64)
    for rows in _in_float64(table):
        products += rows.T @ rows
    squares, vectors = torch.linalg.eigh(products)
    kept = squares > ROW_NOISE**2 * squares[-1].clamp_min(1e-300)
    levers = [((rows @ vectors[:, kept]).square() / squares[kept]).sum(dim=1) for rows in _in_float64(table)]
    return torch.cat(levers).to(table.dtype)


def standing_out(levers: Tensor, width: int) -> Tensor:
    """The rows with at least half the leverage that such rows have on average.

    >>> standing_out(torch.tensor([0.9, 0.01, 0.7, 0.02, 0.02]), 2).tolist()
    [0, 2]
    """
    limit = float(levers.max()) / 2
    for _ in range(ROUNDS):
        limit = float(levers[levers > limit].mean()) / 2
    chance = width / len(levers)  # what every row has if all are noise
    return (levers > max(limit, min(OWN, CLEAR_ROW * chance))).nonzero()[:, 0]


def predicted_rows(head: Tensor) -> Tensor:
    """How strongly each row of an output layer's gradient moves against the model's states; 0 if it does not.

    A token's row is the sum of all states, each times the token's probability there, less those states at which the
    token came next. Only a token that did come can have a negative sum.
    """
    common = common_state(head)
    along = -torch.cat([rows @ common for rows in _in_float64(head)])
    spread = (along - along.median()).abs().median()
    return torch.where(along > CLEAR_ROW * spread, along, torch.zeros_like(along)).to(head.dtype)


def common_state(head: Tensor) -> Tensor:
    """The direction that a model's states have in common, by its output layer's gradient, (width,).

    Most tokens never come, so the sum of all small rows points where the states point.
    """
    sizes = head.norm(dim=1)
    small = (sizes <= SMALL_ROW * sizes.median()).split(AT_ONCE)
    parts = [rows[own].sum(dim=0) for rows, own in zip(_in_float64(head), small, strict=True)]
    common = torch.stack(parts).sum(dim=0)
    return common / common.norm().clamp_min(1e-300)


def rows_above_noise(table: Tensor) -> Tensor | None:
    """The rows of tokens that were there, of a noisy table that is also the output layer; None if no noise shows.

    Rows that stand out of the noise are those of tokens that were there, and of tokens that the model expected
    somewhere. The latter are sums of states and point their way, the former against it or elsewhere.
    """
    usual = row_noise(table)
    if not usual:
        return None
    sizes = table.norm(dim=1)
    clear = clearly_longer(sizes, usual, table.shape[1])
    cosines = (table[clear].double() @ common_state(table)) / sizes[clear].double()
    return clear[cosines < EXPECTED]


def loudest_rows(table: Tensor, most: int) -> Tensor:
    """Of the rows that stand clearly out of a table's noise the longest; none if no noise shows.

    In a table that is also the output layer they are the tokens that were there and those that the model expected
    most, which holds every token of a sentence but for rare exceptions.

    >>> table = 0.1 * torch.randn(1000, 64, generator=torch.Generator().manual_seed(0))
    >>> table[[3, 7]] += 0.2
    >>> table[5] += 0.3
    >>> sorted(loudest_rows(table, 2).tolist()), len(loudest_rows(table, 9))
    ([3, 5], 3)
    """
    usual = row_noise(table)
    if not usual:
        return torch.empty(0, dtype=torch.long, device=table.device)
    sizes = table.norm(dim=1)
    clear = clearly_longer(sizes, usual, table.shape[1])
    return clear[sizes[clear].argsort(descending=True)[:most]]


def _in_float64(table: Tensor) -> Iterator[Tensor]:
    """A table in float64, some rows after the others: all of a large vocabulary would take more than the model."""
    return (rows.double() for rows in table.split(AT_ONCE))
