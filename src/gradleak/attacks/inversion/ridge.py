"""The inverter without hidden layers: ridge regression from gradients to pixels, solved directly."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

from gradleak.attacks.inversion.training import Example
from gradleak.core.budget import Budget
from gradleak.core.errors import GradleakError
from gradleak.core.progress import Progress

# Ridges to choose from by the held-out examples, for features of size 1.
RIDGES = (1e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
# Examples on which they are compared; more would cost time and change nothing.
COMPARED = 1500
# Features whose products with all later ones are added up at once.
BLOCK = 1024
# Examples that are added to them at once, of which few would spend the time on reading and writing sums.
AT_ONCE = 2048


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


def fit_ridge(
    network: LinearInverter,
    examples: Iterable[Example],
    rows: int,
    others: Example,
    progress: Progress,
    budget: Budget,
) -> tuple[float, bool]:
    """Solve for the layer, with the scaling and the ridge that suit the held-out examples best.

    Returns their squared error, and whether all examples were used.

    Coordinates are either all brought to the same size, or all divided by the same number: where noise lies on all of
    them alike, the large coordinates are those that say something. `examples` are so many rows in pieces. The system
    is solved in the space of the examples if there are fewer of them than features, else in that of the features,
    where the pieces pass once and none is kept; a budget that is over ends that pass.
    """
    if rows > len(network.centre):
        return _fit_many(network, examples, rows, others, progress, budget)
    progress.begin("solving for the inverter", 4)
    given, wanted = (torch.cat(parts) for parts in zip(*examples, strict=True))
    some = torch.randperm(len(given), generator=torch.Generator().manual_seed(0))[:COMPARED]
    ridge = _choose(network, given[some], wanted[some], others)
    progress.advance(1)
    features, mean = network.scaled(given), wanted.mean(dim=0)
    products = features @ features.T / features.shape[1]
    progress.advance(2)
    products.diagonal().add_(ridge)
    weights = torch.cholesky_solve(wanted - mean, torch.linalg.cholesky(products))
    progress.advance(3)
    error = _set(network, features.T @ weights / features.shape[1], mean, others)
    progress.end()
    return error, True


def _fit_many(
    network: LinearInverter,
    examples: Iterable[Example],
    rows: int,
    others: Example,
    progress: Progress,
    budget: Budget,
) -> tuple[float, bool]:
    """The same from the normal equations of the features; the ridge is looked for once more with all examples."""
    progress.begin("solving for the inverter", rows, "images")
    pieces = _joined(examples, max(AT_ONCE, COMPARED))
    first = next(pieces)
    ridge = _choose(network, first[0][:COMPARED], first[1][:COMPARED], others)
    size, pixels = len(network.centre), others[1].shape[1]
    products, across = torch.zeros(size, size, device=first[0].device), torch.zeros(size, pixels).to(first[0])
    features_sum, pixels_sum, count = torch.zeros(size).to(first[0]), torch.zeros(pixels).to(first[0]), 0
    for given, wanted in itertools.chain([first], pieces):
        features = network.scaled(given)
        for begin in range(0, size, BLOCK):  # on and above the diagonal
            products[begin : begin + BLOCK, begin:].addmm_(features[:, begin : begin + BLOCK].T, features[:, begin:])
        across.addmm_(features.T, wanted)
        features_sum += features.sum(dim=0)
        pixels_sum += wanted.sum(dim=0)
        count += len(given)
        progress.advance(count)
        if budget.over:
            break
    products.triu_()
    products += products.triu(1).T
    products /= size
    mean = pixels_sum / count
    right = (across - features_sum[:, None] * mean) / size
    factor = _best_factor(network, products, right, mean, ridge, others)
    error = _set(network, torch.cholesky_solve(right, factor), mean, others)
    progress.end()
    return error, count == rows


def _joined(pieces: Iterable[Example], least: int) -> Iterator[Example]:
    """The pieces, so many joined that each has the least number of rows; the last may have fewer."""
    taken: list[Example] = []
    for piece in pieces:
        taken.append(piece)
        if sum(len(given) for given, _ in taken) >= least:
            yield torch.cat([given for given, _ in taken]), torch.cat([wanted for _, wanted in taken])
            taken = []
    if taken:
        yield torch.cat([given for given, _ in taken]), torch.cat([wanted for _, wanted in taken])


def _best_factor(
    network: LinearInverter, products: Tensor, right: Tensor, mean: Tensor, ridge: float, others: Example
) -> Tensor:
    """The Cholesky factor with the best ridge near the one that fewer examples asked for."""
    features = network.scaled(others[0])

    def judged(place: int) -> tuple[float, Tensor | None]:
        """The held-out error with that ridge; without limit where fp32 cannot solve for it."""
        system = products.clone()
        system.diagonal().add_(RIDGES[place])
        factor, failed = torch.linalg.cholesky_ex(system)
        if bool(failed):
            return math.inf, None
        pixels = (torch.cholesky_solve(features.T, factor).T @ right + mean).clamp(0, 1)
        return float((pixels - others[1]).square().mean()), factor

    place = RIDGES.index(ridge)
    error, factor = judged(place)
    while factor is None and place + 1 < len(RIDGES):
        place += 1
        error, factor = judged(place)
    tried = {place}
    for way in (1, -1):
        while 0 <= place + way < len(RIDGES) and place + way not in tried:
            tried.add(place + way)
            other = judged(place + way)
            if other[0] >= error:
                break
            place, (error, factor) = place + way, other
    if factor is None:
        raise GradleakError("the linear inverter cannot be solved for: what the updates show is singular")
    return factor


def _choose(network: LinearInverter, given: Tensor, wanted: Tensor, others: Example) -> float:
    """Set the scaling that suits the held-out examples better, and return the ridge that goes with it."""
    spreads = [network.spread.clone(), network.spread.median().expand_as(network.spread).clone()]
    ridges = [_best_ridge(network, spread, given, wanted, others) for spread in spreads]
    (_, ridge), spread = min(zip(ridges, spreads, strict=True), key=lambda pair: pair[0][0])
    network.spread.copy_(spread)
    return ridge


def _set(network: LinearInverter, weight: Tensor, mean: Tensor, others: Example) -> float:
    """Make it the network's layer; the squared error on the held-out examples."""
    with torch.no_grad():
        network.map.weight.copy_(weight.T)
        network.map.bias.copy_(mean)
        return float((network(others[0]) - others[1]).square().mean())


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
