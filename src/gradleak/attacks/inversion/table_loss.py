"""Cross-entropy over a large vocabulary whose table is not trained, with its derivative in the same pass.

Autograd would write the logits, their softmax and its derivative to memory, each as large as the
vocabulary for every position. Here a few rows at a time stay in the processor's cache.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gradleak.matching.kernels import fastest_products

# Rows whose logits exist at once.
AT_ONCE = 64


def table_cross_entropy(
    states: Tensor, table: Tensor, targets: Tensor, weights: Tensor, bias: Tensor | None = None
) -> Tensor:
    """The weighted sum of the rows' losses for logits `states @ table.T + bias`; the table gets no derivative.

    >>> states, table = torch.eye(2), torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    >>> loss = table_cross_entropy(states, table, torch.tensor([0, 2]), torch.tensor([0.5, 0.5]))
    >>> wanted = torch.nn.functional.cross_entropy(states @ table.T, torch.tensor([0, 2]))
    >>> bool(torch.allclose(loss, wanted))
    True
    """
    return _TableLoss.apply(states, table, targets, weights, bias)


class _TableLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, states: Tensor, table: Tensor, targets: Tensor, weights: Tensor, bias: Tensor | None
    ) -> Tensor:
        to_states, to_bias = ctx.needs_input_grad[0], ctx.needs_input_grad[4]
        slopes = torch.empty_like(states) if to_states else None
        pull = -_summed(targets, weights, len(table)) if to_bias else None
        loss = states.new_zeros(())
        with fastest_products(states.device):
            for first in range(0, len(states), AT_ONCE):
                some = slice(first, first + AT_ONCE)
                logits = states[some] @ table.T
                if bias is not None:
                    logits += bias
                top = logits.max(dim=1, keepdim=True).values
                own = logits.gather(1, targets[some, None]) - top
                shares = logits.sub_(top).exp_()
                total = shares.sum(dim=1, keepdim=True)
                loss += weights[some] @ (total.log() - own)[:, 0]
                if slopes is not None:
                    slopes[some] = weights[some, None] * ((shares @ table) / total - table[targets[some]])
                if pull is not None:
                    pull += (weights[some] / total[:, 0]) @ shares
        ctx.save_for_backward(slopes, pull)
        return loss

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, None, None, None, Tensor | None]:
        slopes, pull = ctx.saved_tensors
        (grad,) = grads
        return None if slopes is None else grad * slopes, None, None, None, None if pull is None else grad * pull


def _summed(targets: Tensor, weights: Tensor, size: int) -> Tensor:
    return torch.zeros(size, dtype=weights.dtype, device=weights.device).index_add_(0, targets, weights)
