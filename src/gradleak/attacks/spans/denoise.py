"""The span of a gradient whose entries are known very unequally, as after a first step of AdamW.

A gradient has as many dimensions as the batch has tokens. Small entries of it are known to a thousandth, large ones
to a third, the largest by their sign only. A product of two narrow matrices is fitted to all of them, each entry
counting by its error, one factor after the other by least squares. The errors also say how exactly the span is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.attacks.spans.spans import Span, least_outside
from gradleak.core.budget import Budget

# Sweeps of a fit, and most of them while each still explains this much of what is left.
SWEEPS, MOST_SWEEPS, WORTH_IT = 4, 9, 0.05
# Entries count as known no better than this share of what is usual in their row and column: more makes fits fragile.
BEST_KNOWN = 0.3
# What keeps the least-squares problems solvable, against their size.
RIDGE = 1e-7
# Rows beyond this many add time, not sharpness: those with most signal are fitted.
MOST_ROWS = 500
# A fit is good if its squared misfits are this much of what the errors allow. Until then the rank grows. Fits that
# are nearly so good once nothing more is gained are slow to converge, and serve.
GOOD, FAIR, GROWTH, TRIES = 1.25, 2.0, 1.2, 6
# A misfit this large after a few sweeps is that of a rank too small.
HOPELESS, FEW = 6.0, 3
# Rounds in which the sizes of rows and columns of errors settle.
ROUNDS = 5


@dataclass(frozen=True)
class Fit:
    """A fitted span, its matrix without noise (outputs, inputs), and the misfit: 1 is what the errors allow."""

    span: Span
    matrix: Tensor
    misfit: float


def denoised(matrix: Tensor, errors: Tensor, rank: int, budget: Budget) -> Fit | None:
    """The best fit to a matrix of this rank or more; None if no rank that leaves room outside explains it.

    >>> left, right = torch.randn(60, 4).double(), torch.randn(4, 30).double()
    >>> errors = 0.001 + torch.rand(60, 30).double().square()
    >>> fit = denoised(left @ right + errors * torch.randn(60, 30), errors, 2, Budget())
    >>> fit.span.rank < 8, bool(fit.span.distances(right).max() < 0.2)
    (True, True)
    """
    most = min(matrix.shape[1] - least_outside(matrix.shape[1]), len(matrix) - 1)
    best: Fit | None = None
    for _ in range(TRIES):
        rank = min(rank, most)
        fit = fitted(matrix, errors, rank, budget)
        if fit.misfit <= GOOD:
            return fit
        if best is None or fit.misfit < best.misfit:
            best = fit
        elif best.misfit <= FAIR:
            break
        if rank >= most:
            break
        rank = max(rank + 2, int(rank * GROWTH))
    return best if best is not None and best.misfit <= FAIR else None


def fitted(matrix: Tensor, errors: Tensor, rank: int, budget: Budget) -> Fit:
    """The fit of a given rank."""
    outer, inner = _usual(errors)
    scaled, off = matrix.double() / outer / inner, errors.double() / outer / inner
    kept = scaled.norm(dim=1).topk(min(MOST_ROWS, len(scaled))).indices.sort().values
    values, weights = scaled[kept], off[kept].clamp_min(BEST_KNOWN).pow(-2)
    right = torch.linalg.svd(values, full_matrices=False)[2][:rank]
    left = _solved(right, values, weights)
    free = max(1, values.numel() - rank * (sum(values.shape) - rank))
    misfit = before = float("inf")
    for sweep in range(MOST_SWEEPS):
        budget.check()
        right = _solved(left.T, values.T, weights.T).T
        right = torch.linalg.qr(right.T).Q.T
        left = _solved(right, values, weights)
        before, misfit = misfit, float((weights * (values - left @ right).square()).sum() / free)
        if sweep + 1 >= FEW and misfit > HOPELESS:
            break
        if sweep + 1 >= SWEEPS and (misfit <= GOOD or misfit > (1 - WORTH_IT) * before):
            break
    # How far noise turns the span: the covariance of every column of `right`, in the inputs' own scale.
    spread = (torch.linalg.inv(_normal(left.T, weights.T)) * inner[0].square()[:, None, None]).sum(dim=0)
    every = left if len(kept) == len(scaled) else _solved(right, scaled, off.clamp_min(BEST_KNOWN).pow(-2))
    return Fit(_span(right * inner, spread), (every @ right) * outer * inner, misfit)


def _span(rows: Tensor, spread: Tensor) -> Span:
    """The span of some rows, along directions in which noise acts separately; `spread` is its covariance."""
    q, r = torch.linalg.qr(rows.T, mode="complete")
    rank = len(rows)
    back = torch.linalg.inv(r[:rank].T)
    variances, turned = torch.linalg.eigh(back @ spread @ back.T)
    basis, complement = (q[:, :rank] @ turned).T, q[:, rank:].T
    sizes = variances.clamp_min(1e-30).rsqrt()
    return Span(basis, complement, sizes, len(complement) ** -0.5, 1.0, (1.0,))


def _solved(factor: Tensor, values: Tensor, weights: Tensor) -> Tensor:
    """The other factor, (rows, rank): every row by weighted least squares."""
    sums = ((weights * values) @ factor.T)[..., None]
    solved: Tensor = torch.linalg.solve(_normal(factor, weights), sums)[..., 0]
    return solved


def _normal(factor: Tensor, weights: Tensor) -> Tensor:
    """The matrix of every row's normal equations: (rows, rank, rank)."""
    single, own = factor.float(), weights.float()  # half the time, and exact enough for weights that are estimates
    products = ((single[None] * own[:, None, :]) @ single.T).double()
    ridge = RIDGE * products.diagonal(dim1=1, dim2=2).mean(dim=1)
    return products + ridge[:, None, None] * torch.eye(len(factor), dtype=torch.float64, device=factor.device)


def _usual(errors: Tensor) -> tuple[Tensor, Tensor]:
    """What is usual for the errors in every row and every column, so that their product is usual for an entry."""
    logs = errors.double().clamp_min(1e-300).log()
    outer, inner = logs.median(dim=1, keepdim=True).values, torch.zeros_like(logs[:1])
    for _ in range(ROUNDS):
        inner = (logs - outer).median(dim=0, keepdim=True).values
        outer = (logs - inner).median(dim=1, keepdim=True).values
    return outer.exp(), inner.exp()


def stacked(tensors: Sequence[Tensor]) -> Tensor:
    """Matrices of the same input as one."""
    return torch.cat([tensor.double() for tensor in tensors])
