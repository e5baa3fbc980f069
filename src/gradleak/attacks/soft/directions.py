"""The directions of a layer's inputs that an update shows, and how much of a state lies along them.

The rows of a gradient are sums of what the layer saw. Where there are fewer rows than tokens (LoRA), where noise or
signs cover most of them, or where there are more tokens than dimensions, a true state does not lie in their span; but
more of it does than of any other state, at every layer anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.attacks.soft.background import Background
from gradleak.attacks.spans.certify import carried

# Directions that are looked at: those of LoRA's factors all, of a full matrix the strongest.
MOST_DIRECTIONS = 128
# Smaller rows are rounding.
ROUNDING = 1e-5


@dataclass(frozen=True)
class Observed:
    """The directions of every spot, in the background's even space, and what public states have along them."""

    background: Background
    directions: list[Tensor]
    means: Tensor
    deviations: Tensor

    def scores(self, states: Sequence[Tensor]) -> Tensor:
        """For states (…, width) of every spot, how many deviations more than public ones lies along: (…, spots)."""
        shares = torch.stack(_shares(self.background.mapped(states), self.directions), dim=-1)
        return (shares - self.means) / self.deviations


def observed(background: Background, tensors: Mapping[str, Tensor]) -> Observed | None:
    """What an update's tensors show of the background's spots; None if they show nothing of one."""
    directions = []
    for spot, mean, even in zip(background.spots, background.means, background.maps, strict=True):
        matrices, seen_through = carried(tensors, spot.parts)
        if not matrices or seen_through is not None:
            return None
        rows = torch.cat([m.double() / m.double().norm().clamp_min(1e-300) for m in matrices]) @ even.double()
        common = mean.double() @ even.double()  # what all states share shows most and tells nothing
        rows = rows - torch.outer(rows @ common, common) / common.square().sum().clamp_min(1e-300)
        squares, vectors = torch.linalg.eigh(rows.T @ rows) if len(rows) > rows.shape[1] else _thin(rows)
        kept = squares > ROUNDING**2 * squares[-1].clamp_min(1e-300)
        directions.append(vectors[:, kept].T.flip(0)[:MOST_DIRECTIONS].float())
    shares = torch.stack(_shares(background.examples, directions), dim=-1)
    return Observed(background, directions, shares.mean(dim=0), shares.std(dim=0).clamp_min(1e-6))


def _thin(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Squared singular values, rising, and right singular vectors as columns."""
    _, sizes, directions = torch.linalg.svd(rows, full_matrices=False)
    return sizes.square().flip(0), directions.T.flip(1)


def _shares(mapped: Sequence[Tensor], directions: Sequence[Tensor]) -> list[Tensor]:
    """The part of each state that lies along the directions, 0 to 1."""
    return [
        (state @ own.T).square().sum(dim=-1) / state.square().sum(dim=-1).clamp_min(1e-12)
        for state, own in zip(mapped, directions, strict=True)
    ]
