"""What a recovered sentence contributes to an update where its labels cannot be tried one by one.

A sentence's part of an update is what its loss makes of the derivatives by its logits: its slope. Labels can be too
many to try, or numbers, but the slope they make is a combination of few known ones, and so is all that follows from
it. So the slope itself is solved for, and the label is read off it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.models.tasks import Label
from gradleak.models.text import TextModel

# Unknowns for every equation. What is wrong then fits to the root of what is left, far above what is accepted.
MOST_UNKNOWNS = 0.9


@dataclass(frozen=True)
class Slope:
    """The derivative of a batch's loss by the logits of one of its sentences, and what it says of the sentence."""

    of_logits: Tensor
    misfit: float
    label: Label | None
    share: float | None


class SlopeSearch:
    """Solves for the slope of one sentence.

    `response` gives for the gradient of the sentence's weights what must come out as the identity in sum, (places,
    places), or None if there is nothing to compare.
    """

    def __init__(self, model: TextModel, tokens: Sequence[int], predicted: Sequence[int]) -> None:
        self.model, self.tokens, self.predicted = model, list(tokens), list(predicted)
        batch = model.pad([self.tokens])
        self.logits = model.logits(ids=batch.ids, mask=batch.mask)
        self._parameters = model.parameters()

    def gradient(self, slope: Tensor, names: Sequence[str]) -> dict[str, Tensor]:
        """What a sentence with this slope adds to an update, of some parameters."""
        wanted = [self._parameters[name] for name in names]
        found = torch.autograd.grad((self.logits * slope).sum(), wanted, retain_graph=True, allow_unused=True)
        return {name: g.double() for name, g in zip(names, found, strict=True) if g is not None}

    def basis(self) -> list[Tensor]:
        """For every attempt the slopes that the sentence's own is a combination of, the fewest first."""
        return self.model.goal.slopes(self.model, self.logits.detach(), self.tokens, self.predicted)

    def solve(self, basis: Tensor, responses: Sequence[Tensor], sentences: int | None) -> Slope | None:
        """The combination whose responses add up to the identity; None if there are too few equations."""
        places = len(responses[0])
        if len(basis) > MOST_UNKNOWNS * places * places:
            return None
        columns = torch.stack([response.flatten() for response in responses], dim=1)
        eye = torch.eye(places, dtype=columns.dtype, device=columns.device).flatten()
        sizes = columns.norm(dim=0).clamp_min(1e-300)
        weights = (torch.linalg.pinv(columns / sizes, rtol=1e-10) @ eye) / sizes
        misfit = float((columns @ weights - eye).norm() / places**0.5)
        slope = torch.einsum("k,k...->...", weights, basis.double())
        label, share = self.model.goal.read_slope(slope, self.logits.detach(), self.tokens, sentences)
        return Slope(slope, misfit, label, share)


def scaled(gradient: Mapping[str, Tensor], share: float) -> dict[str, Tensor]:
    return {name: share * tensor for name, tensor in gradient.items()}
