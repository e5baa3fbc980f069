"""The plain engine: one guess at a time, one full gradient each, nothing clever.

It is slow and it is the measure of every faster engine: they must agree with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gradleak.errors import GradleakError
from gradleak.matching.distances import Distance
from gradleak.matching.dummies import Dummies
from gradleak.models.target import TargetModel

# Some gradients are zero by construction and hold only rounding (key biases: softmax ignores a common shift).
# A tensor this far below the typical one carries nothing, and a cosine would blow its rounding up to full size.
NOTHING = 1e-5


def matched_parameters(model: TargetModel, tensors: Mapping[str, Tensor]) -> list[str]:
    """Names of the tensors that can be matched when the dummy is a matrix of word embeddings.

    Left out: the word table itself (the dummy has no gradient there), parameters of the output that share
    it, and tensors that hold only rounding.
    """
    words = model.adapter.parameter_of(model.adapter.words)
    sizes = {name: float(t.square().mean().sqrt()) for name, t in tensors.items() if name != words}
    if not sizes:
        raise GradleakError("the update holds nothing beside the word embeddings, so there is nothing to match")
    typical = sorted(sizes.values())[len(sizes) // 2]
    kept = [name for name in model.parameters() if sizes.get(name, 0.0) > NOTHING * typical]
    if not kept:
        raise GradleakError("every tensor of the update is zero, so there is nothing to match")
    return kept


class NaiveEngine:
    """Distances between the gradients of dummies and those of updates, by plain automatic differentiation."""

    def __init__(self, model: TargetModel, targets: Sequence[Mapping[str, Tensor]], distance: Distance) -> None:
        self.model = model
        self.distance = distance
        self.names = [matched_parameters(model, target) for target in targets]
        self.targets = [
            [target[name].to(model.device) for name in names]
            for names, target in zip(self.names, targets, strict=True)
        ]

    def values(self, dummies: Dummies) -> Tensor:
        """The distance of every row, (R,)."""
        rows = [self._distance(dummies, row, dummies.embeds[row], False) for row in range(len(dummies))]
        return torch.stack(rows).detach()

    def values_and_gradients(self, dummies: Dummies) -> tuple[Tensor, Tensor]:
        """The distance of every row, (R,), and its derivative by the row's embeddings, (R, B, n, d)."""
        values, gradients = [], []
        for row in range(len(dummies)):
            embeds = dummies.embeds[row].detach().requires_grad_()
            value = self._distance(dummies, row, embeds, True)
            (gradient,) = torch.autograd.grad(value, embeds)
            values.append(value.detach())
            gradients.append(gradient)
        return torch.stack(values), torch.stack(gradients)

    def _distance(self, dummies: Dummies, row: int, embeds: Tensor, differentiable: bool) -> Tensor:
        which = int(dummies.target[row])
        mask = dummies.mask[row]
        width = int(mask.sum(dim=1).max())
        labels = dummies.labels[row]
        if labels.dim() == 2:
            labels = labels[:, :width]
        loss = self.model.loss(labels, embeds=embeds[:, :width], mask=mask[:, :width])
        parameters = self.model.parameters()
        wanted = [parameters[name] for name in self.names[which]]
        gradients = torch.autograd.grad(loss, wanted, create_graph=differentiable)
        return self.distance(gradients, self.targets[which])
