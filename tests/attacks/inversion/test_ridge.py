"""The linear inverter."""

import pytest
import torch

from gradleak import GradleakError
from gradleak.attacks.inversion import ridge
from gradleak.attacks.inversion.ridge import RIDGES, LinearInverter, fit_ridge
from gradleak.core.budget import Budget
from gradleak.core.progress import SILENT


def test_the_linear_inverter_is_ridge_regression():
    """Against the normal equations, with more features than examples and the best of the ridges."""
    generator = torch.Generator().manual_seed(0)
    truth = torch.randn(12, 4, generator=generator) / 10
    given = torch.randn(40, 12, generator=generator)
    wanted = 0.5 + given @ truth
    network = LinearInverter(12, 4)
    error, finished = fit_ridge(network, [(given[:9], wanted[:9])], 9, (given[9:], wanted[9:]), SILENT, Budget())
    assert finished
    errors = []
    for each in RIDGES:
        x, mean = given[:9], wanted[:9].mean(dim=0)
        weight = torch.linalg.solve(x.T @ x + 12 * each * torch.eye(12), x.T @ (wanted[:9] - mean))
        errors.append(float(((given[9:] @ weight + mean).clamp(0, 1) - wanted[9:]).square().mean()))
    assert error == pytest.approx(min(errors), rel=1e-3)


def many(noise=0.0):
    """More examples than features, in pieces of 50; the coordinates are of different sizes."""
    generator = torch.Generator().manual_seed(1)
    truth = torch.randn(12, 4, generator=generator) / 60  # so that pixels stay within 0 and 1
    given = torch.randn(600, 12, generator=generator) * torch.linspace(0.5, 2, 12) + 0.3
    wanted = 0.5 + given @ truth + noise * torch.randn(600, 4, generator=generator)
    return list(zip(given.split(50), wanted.split(50), strict=True))


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_many_examples_pass_once_and_give_the_same(noise, monkeypatch):
    """Against the same solved in the space of the examples, with the ridge that it found."""
    *pieces, others = many(noise)
    monkeypatch.setattr(ridge, "BLOCK", 5)
    monkeypatch.setattr(ridge, "COMPARED", 120)
    monkeypatch.setattr(ridge, "AT_ONCE", 100)
    network, slow = LinearInverter(12, 4), LinearInverter(12, 4)
    for each in (network, slow):
        each.fit(*pieces[0])
    error, finished = fit_ridge(network, iter(pieces), 550, others, SILENT, Budget())
    assert finished
    given, wanted = (torch.cat(parts) for parts in zip(*pieces, strict=True))
    slow.spread.copy_(network.spread)
    found = []
    for each in RIDGES:
        x, mean = slow.scaled(given).double(), wanted.mean(dim=0)
        kernel = x @ x.T / 12 + each * torch.eye(550)
        slow.map.weight.data = (x.T @ torch.linalg.solve(kernel, (wanted - mean).double()) / 12).T.float()
        slow.map.bias.data = mean
        found.append(float((slow(others[0]) - others[1]).detach().square().mean()))
    assert error == pytest.approx(min(found), rel=1e-3, abs=1e-7)


def test_what_cannot_be_solved_for_is_tried_with_a_larger_ridge(monkeypatch):
    """A feature that is never there leaves a system that cannot be factored without a ridge."""
    *pieces, others = [(torch.cat([given, 0 * given], dim=1), wanted) for given, wanted in many()]
    monkeypatch.setattr(ridge, "RIDGES", (0.0, 1e-3, 1e-2))
    monkeypatch.setattr(ridge, "_choose", lambda *_: 0.0)
    network = LinearInverter(24, 4)
    network.fit(*pieces[0])
    error, _ = fit_ridge(network, pieces, 550, others, SILENT, Budget())
    assert error < 1e-3
    monkeypatch.setattr(ridge, "RIDGES", (0.0,))
    with pytest.raises(GradleakError, match="singular"):
        fit_ridge(network, pieces, 550, others, SILENT, Budget())


def test_a_budget_ends_the_pass(monkeypatch):
    *pieces, others = many()
    monkeypatch.setattr(ridge, "COMPARED", 120)
    monkeypatch.setattr(ridge, "AT_ONCE", 100)
    network = LinearInverter(12, 4)
    seen = []

    def noted():
        for piece in pieces:
            seen.append(len(piece[0]))
            yield piece

    error, finished = fit_ridge(network, noted(), 550, others, SILENT, Budget(seconds=0))
    assert not finished
    assert error < 0.05
    assert sum(seen) == 150  # what the first look takes
