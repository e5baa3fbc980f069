"""Which tokens a batch had, from the rows of the word table's gradient."""

from __future__ import annotations

import math
from typing import Literal

from torch import Tensor

# A row stands out if its norm is so many standard deviations larger than noise would make it.
CLEAR_ROW = 6.0
# A row so far below the largest one holds rounding.
ROW_NOISE = 1e-6
# If more rows than this share stand out, the table tells nothing: most tokens are in no batch.
MOST_ROWS = 0.5

RowRule = Literal["norm", "film"]


def present_rows(table: Tensor, rule: RowRule = "norm") -> Tensor | None:
    """The rows of tokens that were in the batch; None if the table does not tell.

    Most tokens are in no batch, so the median row shows what noise alone gives. A token was there if its row is
    clearly longer (norm), or by the rule of the FILM paper, if its largest entry is larger than noise makes one entry
    of a row on average, which every fifth absent token passes too.

    >>> import torch
    >>> table = 0.1 * torch.randn(1000, 64, generator=torch.Generator().manual_seed(0))
    >>> table[[3, 7]] += 0.2
    >>> present_rows(table).tolist(), len(present_rows(table, "film")) > 100
    ([3, 7], True)
    """
    sizes, width = table.norm(dim=1), table.shape[1]
    usual = sizes.median()
    if rule == "film" and float(usual) > ROW_NOISE * float(sizes.max()):
        found = table.abs().amax(dim=1) > usual / width**0.5 * math.sqrt(2 * math.log(width))
    else:
        limit = usual * (1 + CLEAR_ROW / (2 * width) ** 0.5)
        found = sizes > limit.clamp_min(ROW_NOISE * float(sizes.max()))
    return found.nonzero()[:, 0] if 0 < int(found.sum()) <= MOST_ROWS * len(table) else None
