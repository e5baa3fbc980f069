"""Which token stood where, from the gradients of the token and position embeddings, or of the first layer.

A row of the token embedding's gradient is the sum of the gradients at the token's positions; a row of the position
embedding's is the sum of the gradients at that position over all sentences. So each position row is a mixture of
token rows, and a token that occurs once belongs to a single position.

Embeddings that are not sent can be done without. The first layer sees (token + position), so its gradient is the sum
over tokens of the token's vector times the output gradients at its positions, plus the same over positions. All these
vectors are known and independent as long as the span has room, so both kinds of sums can be solved for.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradleak.attacks.spans.spans import Span

STEPS = 400
# Singular values of an output layer's gradient below this share of the largest are rounding.
PREDICTED = 1e-6
LEARNING_RATE = 0.2
# Adam's usual ones.
DECAYS, EPSILON = (0.9, 0.999), 1e-8


def unmix(tokens: Tensor, positions: Tensor, allowed: Tensor) -> Tensor:
    """How much of each token's row lies at each position: (tokens, positions), every row adding up to 1.

    `allowed` says which pairs are possible at all. The shares minimise the squared misfit of the position rows.

    >>> rows = torch.eye(4).double()
    >>> shares = unmix(rows, rows[[2, 0, 1, 3]], torch.ones(4, 4, dtype=torch.bool))
    >>> shares.argmax(dim=1).tolist()
    [1, 2, 0, 3]
    """
    tokens, positions = tokens.double(), positions.double()
    nowhere = ~allowed.any(dim=1, keepdim=True)
    forbidden = ~(allowed | nowhere)
    # The misfit needs only products of rows, which are far smaller than the rows.
    own, cross, scale = tokens @ tokens.T, tokens @ positions.T, positions.square().sum()
    logits = torch.zeros(len(tokens), len(positions), dtype=torch.float64, device=tokens.device)
    return _fitted(logits.masked_fill(forbidden, -1e9), own, cross, scale).masked_fill(nowhere, 0.0)


def _fitted(logits: Tensor, own: Tensor, cross: Tensor, scale: Tensor) -> Tensor:
    """The shares after some hundred steps of Adam.

    By hand: for matrices this small autograd and the optimiser take many times as long as what they compute.
    """
    first, second = DECAYS
    mean, square = torch.zeros_like(logits), torch.zeros_like(logits)
    for step in range(1, STEPS + 1):
        shares = logits.softmax(dim=1)
        pull = (own @ shares).sub_(cross).mul_(shares)
        slope = pull.addcmul_(shares, pull.sum(dim=1, keepdim=True), value=-1).mul_(2 / scale)
        mean.lerp_(slope, 1 - first)
        square.mul_(second).addcmul_(slope, slope, value=1 - second)
        size = (square / (1 - second**step)).sqrt_().add_(EPSILON)
        logits.addcdiv_(mean, size, value=-LEARNING_RATE / (1 - first**step))
    return logits.softmax(dim=1)


def embedding_rows(span: Span, matrices: Sequence[Tensor], inputs: Tensor, fits: Tensor) -> tuple[Tensor, Tensor]:
    """The summed output gradients of every token and every position, (tokens, outputs) and (positions, outputs).

    `matrices` are the gradients that the span is of, `inputs` what the layer sees of tokens at positions, `fits` says
    which of these lie in the span. How they are split among pairs is not unique, the sums are. That holds exactly
    before the embeddings' norm; dividing by the norm's divisor found no more pairs in six batches.
    """
    stacked = torch.cat([m.double() / scale for m, scale in zip(matrices, span.scales, strict=True) if scale > 0])
    seen = inputs[fits].to(span.basis)
    seen = (seen if span.map is None else seen @ span.map.to(seen).T) @ span.basis.T
    split = torch.linalg.pinv(seen).T @ (stacked.to(seen) @ span.basis.T).T
    token, position = fits.nonzero().T
    tokens, positions = (split.new_zeros(count, split.shape[1]) for count in fits.shape)
    return tokens.index_add_(0, token, split), positions.index_add_(0, position, split)


def read_only(table: Tensor, tokens: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """The rows of some tokens, and of positions, without what a table gets as the output layer.

    As that, every row gets a combination of the states at which something was predicted, the rows of tokens that were
    not read nothing else. So these span the states, and what is left across them comes from reading alone.
    """
    others = torch.ones(len(table), dtype=torch.bool, device=table.device)
    others[tokens] = False
    rows = table[others].double()
    squares, states = torch.linalg.eigh(rows.T @ rows)
    kept = squares <= PREDICTED**2 * squares[-1].clamp_min(1e-300)
    across = states[:, kept].to(table)
    return table[tokens] @ across, positions.to(table) @ across
