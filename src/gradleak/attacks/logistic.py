"""Logistic regression with a ridge: how much likelier something is than not, by weights of its evidence."""

from __future__ import annotations

import torch
from torch import Tensor

# Newton's steps at most, the longest of them, and the length at which they end.
STEPS, LONGEST, SETTLED = 100, 5.0, 1e-8


def logistic(evidence: Tensor, right: Tensor, ridge: float) -> Tensor:
    """A weight for every column of the evidence, and the constant, which no ridge holds near zero.

    >>> weights = logistic(torch.tensor([[-2.0], [-1.0], [1.0], [2.0]]), torch.tensor([0, 0, 1, 1]), ridge=0.2)
    >>> bool(weights[0] > 1), abs(float(weights[1])) < 1e-3
    (True, True)
    """
    wanted = right.double()
    columns = torch.cat([evidence.double(), torch.ones(len(evidence), 1, dtype=torch.float64)], dim=1)
    held = torch.full((columns.shape[1],), ridge, dtype=torch.float64)
    held[-1] = 1e-6
    weights = torch.zeros(columns.shape[1], dtype=torch.float64)
    for _ in range(STEPS):
        chance = (columns @ weights).sigmoid()
        slope = columns.T @ (chance - wanted) + held * weights
        curve = (columns.T * (chance * (1 - chance)).clamp_min(1e-9)) @ columns + torch.diag(held)
        step = torch.linalg.solve(curve, slope)
        size = float(step.norm())
        weights -= step * min(1.0, LONGEST / max(size, 1e-30))
        if size < SETTLED:
            break
    return weights
