"""Which token stood where, from the two embedding tables' gradients.

A row of the word table's gradient is the sum of the signals at the token's places; a row of the position table's is
the sum of the signals at that place over all sentences. So each position row is a mixture of word rows, and a token
that occurs once belongs to one position whole.
"""

from __future__ import annotations

import torch
from torch import Tensor

STEPS = 400
LEARNING_RATE = 0.2


def unmix(words: Tensor, positions: Tensor, allowed: Tensor) -> Tensor:
    """How much of each token's row lies at each position: (tokens, positions), every row adding up to one.

    `allowed` says which pairs are possible at all. The shares minimise the squared misfit of the position rows.

    >>> signals = torch.eye(4).double()
    >>> shares = unmix(signals, signals[[2, 0, 1, 3]], torch.ones(4, 4, dtype=torch.bool))
    >>> shares.argmax(dim=1).tolist()
    [1, 2, 0, 3]
    """
    words, positions = words.double(), positions.double()
    nowhere = ~allowed.any(dim=1, keepdim=True)
    forbidden = ~(allowed | nowhere)
    # The misfit needs only products of rows, which are far smaller than the rows.
    own, cross, scale = words @ words.T, words @ positions.T, positions.square().sum()
    logits = torch.zeros(len(words), len(positions), dtype=torch.float64, device=words.device, requires_grad=True)
    optimizer = torch.optim.Adam([logits], lr=LEARNING_RATE)
    for _ in range(STEPS):
        shares = logits.masked_fill(forbidden, -1e9).softmax(dim=1)
        misfit = ((own @ shares) * shares).sum() - 2 * (shares * cross).sum()
        optimizer.zero_grad()
        (misfit / scale).backward()
        optimizer.step()
    return logits.detach().masked_fill(forbidden, -1e9).softmax(dim=1).masked_fill(nowhere, 0.0)
