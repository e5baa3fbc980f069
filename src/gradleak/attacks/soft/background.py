"""What states look like in general: their mean and spread, from public text, which say nothing of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.attacks.spans.certify import mixed_places
from gradleak.attacks.spans.probe import Probe
from gradleak.models.adapter import Part
from gradleak.models.text import TextModel

# Spread that every direction is taken to have at least, relative to the mean: public text never shows all of it.
RIDGE = 1e-2
# States that are kept to compare with.
KEPT = 400
# The share of a model's layers that is looked at, from below: the upper ones add little and cost most.
DEPTH = 0.7
# Sentences that go through the model at once.
AT_ONCE = 8


@dataclass(frozen=True)
class Spot:
    """A place where states are looked at: the matrices of an update that see the same input there."""

    parts: tuple[Part, ...]


def spots_of(model: TextModel, held: Sequence[str]) -> list[Spot]:
    """The places whose inputs show in the tensors of these names, in the order in which the model runs them.

    A layer's attention sees its input, its feed-forward block what the attention made of it. The first layer's input
    is left out: nothing is mixed there, and which tokens it saw is another question.
    """
    layers = range(min(len(model.adapter.parts), max(2, round(DEPTH * len(model.adapter.parts)))))
    groups = [group for _, group in mixed_places(model, layers)]
    names = set(held)
    kept = [tuple(part for part in group if names & set(part.tensor_names)) for group in groups]
    return [Spot(parts) for parts in kept if parts]


@dataclass(frozen=True)
class Background:
    """For every spot the mean of public states, the map that makes their spread even, and some of them, mapped."""

    spots: list[Spot]
    means: list[Tensor]
    maps: list[Tensor]
    examples: list[Tensor]

    def mapped(self, states: Sequence[Tensor]) -> list[Tensor]:
        """States of every spot without their mean, with even spread."""
        both = zip(states, self.means, self.maps, strict=True)
        return [(seen - mean) @ even for seen, mean, even in both]


@torch.no_grad()
def background(model: TextModel, spots: Sequence[Spot], rows: Sequence[Sequence[int]]) -> Background:
    """The background of these spots, from token rows of public text, without first tokens, which look all alike."""
    probe = Probe(model, [spot.parts[0] for spot in spots])
    seen: list[list[Tensor]] = [[] for _ in spots]
    for first in range(0, len(rows), AT_ONCE):
        batch = model.pad(rows[first : first + AT_ONCE])
        inside = batch.mask.clone()
        inside[:, 0] = False
        for own, states in zip(seen, probe(input_ids=batch.ids, mask=batch.mask.long()), strict=True):
            own.append(states[inside].float())
    means, maps, examples = [], [], []
    for states in (torch.cat(own) for own in seen):
        mean = states.mean(dim=0)
        centred = (states - mean).double()
        covariance = centred.T @ centred / len(centred)
        sizes, vectors = torch.linalg.eigh(covariance)
        even = (vectors / (sizes.clamp_min(0) + RIDGE * sizes.mean()).sqrt()) @ vectors.T
        means.append(mean)
        maps.append(even.float())
        every = max(1, len(states) // KEPT)
        examples.append((centred[::every] @ even).float())
    return Background(list(spots), means, maps, examples)
