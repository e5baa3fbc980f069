"""Weighted fits of matrices whose entries are known very unequally."""

import pytest
import torch

from gradleak.attacks.spans.denoise import denoised, fitted
from gradleak.core.budget import Budget, Stopped


def drawn(rank: int = 6, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Inputs, and the gradient they made with errors as AdamW leaves them: large entries badly known."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(rank, 48, generator=generator).double()
    true = torch.randn(120, rank, generator=generator).double() @ inputs
    errors = 0.05 * true.square() + 1e-4
    return inputs, true + errors * torch.randn(true.shape, generator=generator), errors


def test_weights_sharpen_the_span() -> None:
    inputs, matrix, errors = drawn()
    fit = denoised(matrix, errors, 6, Budget())
    assert fit is not None
    plain = torch.linalg.svd(matrix)[2][:6]
    units = torch.nn.functional.normalize(inputs, dim=1)
    unweighted = (units - units @ plain.T @ plain).norm(dim=1)
    assert float(fit.span.distances(inputs).max()) < 0.2 * float(unweighted.max())


def test_distances_are_what_the_errors_predict() -> None:
    inputs, matrix, errors = drawn()
    fit = fitted(matrix, errors, 6, Budget())
    ratio = fit.span.distances(inputs) / fit.span.floors(inputs)
    assert 0.2 < float(ratio.median()) < 3
    assert 0.5 < fit.misfit < 1.5


def test_the_rank_grows_until_everything_is_explained() -> None:
    _, matrix, errors = drawn()
    fit = denoised(matrix, errors, 3, Budget())
    assert fit is not None
    assert 6 <= fit.span.rank <= 9


def test_what_fills_the_space_has_no_span() -> None:
    matrix = torch.randn(60, 24, generator=torch.Generator().manual_seed(0)).double()
    assert denoised(matrix, torch.full_like(matrix, 1e-3), 10, Budget()) is None


def test_the_budget_ends_a_fit() -> None:
    _, matrix, errors = drawn()
    with pytest.raises(Stopped):
        denoised(matrix, errors, 6, Budget(seconds=0))
