"""How much at home a state is among those that made a gradient, beyond the rank limit.

The gradient of a matrix is a sum over tokens of an output gradient times an input. With fewer tokens than dimensions
its rows span the inputs, and another state lies outside. With more they span everything; but a direction in which
the batch had little is weak in the gradient, and a state that was not there has too much in such directions. So the
length of a state by the gradient's inverse tells them apart still, at every layer anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from gradleak.attacks.soft.background import Spot
from gradleak.attacks.spans.certify import attention_parts, carried, mixing_parts
from gradleak.models.text import TextModel

# The layers whose inputs are looked at, as shares of all: early ones see hardly more than the token, late ones hardly
# more than what comes next. Of those every so manieth.
FROM, UNTIL, EVERY = 1 / 15, 3 / 4, 2
# Squared singular values below this share of the largest are rounding.
ROUNDING = 1e-14


@dataclass(frozen=True)
class Leverages:
    """For every spot the map by which the length of a unit state is its leverage."""

    spots: list[Spot]
    maps: list[Tensor]

    def of(self, states: Sequence[Tensor]) -> Tensor:
        """The logarithm of the leverage of states (…, width) of every spot, (…, spots)."""
        both = zip(states, self.maps, strict=True)
        return torch.stack(
            [(F.normalize(state.float(), dim=-1) @ own).square().sum(dim=-1).log() for state, own in both], dim=-1
        )


def spots_of(model: TextModel, tensors: Mapping[str, Tensor]) -> list[Spot]:
    """The places looked at whose matrices an update holds whole, in the order in which the model runs them."""
    count = len(model.adapter.parts)
    first = max(1, round(FROM * count))
    layers = range(first, max(first + 1, round(UNTIL * count)), EVERY if count > 2 * EVERY else 1)
    groups = [kind(model, layer) for layer in layers for kind in (attention_parts, mixing_parts)]
    held = [tuple(part for part in group if part.weight_name in tensors) for group in groups]
    return [Spot(parts) for parts in held if parts]


def leverages(spots: Sequence[Spot], tensors: Mapping[str, Tensor]) -> Leverages:
    """What an update's tensors tell of states at these spots."""
    maps = []
    for spot in spots:
        matrices, _ = carried(tensors, spot.parts)
        rows = torch.cat([m.double() / m.double().norm().clamp_min(1e-300) for m in matrices])
        squares, vectors = torch.linalg.eigh(rows.T @ rows)
        maps.append((vectors / squares.clamp_min(ROUNDING * float(squares[-1])).sqrt()).float())
    return Leverages(list(spots), maps)
