"""The inverter without hidden layers: ridge regression from gradients to pixels, solved directly."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from gradleak.attacks.inversion.training import Example
from gradleak.core.progress import Progress

# Ridges to choose from by the held-out examples, for features of size 1.
RIDGES = (1e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
# Examples on which they are compared; more would cost time and change nothing.
COMPARED = 1500


# A coordinate that hardly ever varies is not blown up beyond this, in units of the typical spread.
LEAST_SPREAD = 0.1


class Rescaled(nn.Module):
    """A network after a fixed rescaling of every feature."""

    centre: Tensor
    spread: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(size))
        self.register_buffer("spread", torch.ones(size))

    def fit(self, gradients: Tensor, images: Tensor) -> None:
        """Learn how large every coordinate usually is."""
        with torch.no_grad():
            self.centre.copy_(gradients.mean(dim=0))
            spread = gradients.std(dim=0)
            self.spread.copy_(spread.clamp_min(LEAST_SPREAD * float(spread.mean()) + 1e-12))

    def scaled(self, gradients: Tensor) -> Tensor:
        return (gradients - self.centre) / self.spread


class LinearInverter(Rescaled):
    """A linear layer; values are cut off below 0 and above 1."""

    def __init__(self, size: int, pixels: int) -> None:
        super().__init__(size)
        self.map = nn.Linear(size, pixels)

    def forward(self, gradients: Tensor) -> Tensor:
        pixels: Tensor = self.map(self.scaled(gradients))
        return pixels.clamp(0, 1)


def fit_ridge(network: LinearInverter, examples: Sequence[Example], others: Example, progress: Progress) -> float:
    """Solve for the layer, with the scaling and the ridge that suit the held-out examples best; their squared error.

    Coordinates are either all brought to the same size, or all divided by the same number: where noise lies on all of
    them alike, the large coordinates are those that say something. There are fewer examples than features, so the
    system is solved in the space of the examples.
    """
    progress.begin("solving for the inverter", 4)
    given, wanted = (torch.cat(parts) for parts in zip(*examples, strict=True))
    some = torch.randperm(len(given), generator=torch.Generator().manual_seed(0))[:COMPARED]
    spreads = [network.spread.clone(), network.spread.median().expand_as(network.spread).clone()]
    ridges = [_best_ridge(network, spread, given[some], wanted[some], others) for spread in spreads]
    (_, ridge), spread = min(zip(ridges, spreads, strict=True), key=lambda pair: pair[0][0])
    network.spread.copy_(spread)
    progress.advance(1)
    features, mean = network.scaled(given), wanted.mean(dim=0)
    products = features @ features.T / features.shape[1]
    progress.advance(2)
    products.diagonal().add_(ridge)
    weights = torch.cholesky_solve(wanted - mean, torch.linalg.cholesky(products))
    progress.advance(3)
    with torch.no_grad():
        network.map.weight.copy_((features.T @ weights / features.shape[1]).T)
        network.map.bias.copy_(mean)
        error = float((network(others[0]) - others[1]).square().mean())
    progress.end()
    return error


def _best_ridge(
    network: LinearInverter, spread: Tensor, given: Tensor, wanted: Tensor, others: Example
) -> tuple[float, float]:
    """The smallest error on the held-out examples that any ridge reaches with this scaling, and the ridge."""
    network.spread.copy_(spread)
    features, mean = network.scaled(given), wanted.mean(dim=0)
    size = features.shape[1]
    values, vectors = torch.linalg.eigh(features @ features.T / size)
    rotated = vectors.T @ (wanted - mean)
    across = (network.scaled(others[0]) @ features.T / size) @ vectors

    def error(ridge: float) -> float:
        pixels = ((across / (values + ridge)) @ rotated + mean).clamp(0, 1)
        return float((pixels - others[1]).square().mean())

    return min((error(ridge), ridge) for ridge in RIDGES)
