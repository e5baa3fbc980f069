"""Logistic regression with a ridge: how much likelier something is than not, by weights of its evidence."""

from __future__ import annotations

import torch
from torch import Tensor

ROUNDS = 200


def logistic(evidence: Tensor, right: Tensor, ridge: float) -> Tensor:
    """A weight for every column of the evidence, and the constant.

    >>> weights = logistic(torch.tensor([[-2.0], [-1.0], [1.0], [2.0]]), torch.tensor([0, 0, 1, 1]), ridge=0.1)
    >>> bool(weights[0] > 1), abs(float(weights[1])) < 1e-3
    (True, True)
    """
    columns = evidence.double()
    weights = torch.zeros(columns.shape[1] + 1, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([weights], max_iter=ROUNDS, line_search_fn="strong_wolfe")
    wanted = right.double()

    def loss() -> Tensor:
        optimizer.zero_grad()
        values = columns @ weights[:-1] + weights[-1]
        total = torch.nn.functional.binary_cross_entropy_with_logits(values, wanted, reduction="sum")
        total = total + ridge * weights[:-1].square().sum()
        total.backward()
        return total

    optimizer.step(loss)
    return weights.detach()
