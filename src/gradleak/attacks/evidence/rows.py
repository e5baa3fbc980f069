"""What the rows of a token embedding's or an output layer's gradient show of the tokens of a batch."""

from __future__ import annotations

import math
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
        limit = usual * (1 + CLEAR_ROW / (2 * width) ** 0.5)
        present = sizes > limit.clamp_min(ROW_NOISE * float(sizes.max()))
    return present.nonzero()[:, 0] if 0 < int(present.sum()) <= MOST_ROWS * len(table) else None


def leverages(table: Tensor) -> Tensor:
    """How much each row shapes the table's row space, 0 to 1.

    In the gradient of a table that is also the output layer every row is a mix of the batch's states. Tokens that
    were there have a state, or an output gradient, of their own in it; the others only a little of everything.

    >>> leverages(torch.tensor([[2.0, 0.0], [0.0, 3.0], [0.0, 0.0]])).tolist()
    [1.0, 1.0, 0.0]
    """
    rows = table.double()
    squares, vectors = torch.linalg.eigh(rows.T @ rows)
    kept = squares > ROW_NOISE**2 * squares[-1].clamp_min(1e-300)
    return ((rows @ vectors[:, kept]).square() / squares[kept]).sum(dim=1).to(table.dtype)


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
    token came next. Only a token that did come can have a negative sum. Most tokens never come, so the sum of all
    small rows points where the states point.
    """
    sizes = head.norm(dim=1)
    common = head[sizes <= SMALL_ROW * sizes.median()].double().sum(dim=0)
    along = -(head.double() @ common) / common.norm().clamp_min(1e-300)
    spread = (along - along.median()).abs().median()
    return torch.where(along > CLEAR_ROW * spread, along, torch.zeros_like(along)).to(head.dtype)
