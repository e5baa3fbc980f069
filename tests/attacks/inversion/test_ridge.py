"""The linear inverter."""

import pytest
import torch

from gradleak.attacks.inversion.ridge import RIDGES, LinearInverter, fit_ridge
from gradleak.core.progress import SILENT


def test_the_linear_inverter_is_ridge_regression():
    """Against the normal equations, with more features than examples and the best of the ridges."""
    generator = torch.Generator().manual_seed(0)
    truth = torch.randn(12, 4, generator=generator) / 10
    given = torch.randn(40, 12, generator=generator)
    wanted = 0.5 + given @ truth
    network = LinearInverter(12, 4)
    error = fit_ridge(network, [(given[:9], wanted[:9])], (given[9:], wanted[9:]), SILENT)
    errors = []
    for ridge in RIDGES:
        x, mean = given[:9], wanted[:9].mean(dim=0)
        weight = torch.linalg.solve(x.T @ x + 12 * ridge * torch.eye(12), x.T @ (wanted[:9] - mean))
        errors.append(float(((given[9:] @ weight + mean).clamp(0, 1) - wanted[9:]).square().mean()))
    assert error == pytest.approx(min(errors), rel=1e-3)
