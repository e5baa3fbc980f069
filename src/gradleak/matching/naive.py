"""The plain engine: one guess at a time, one full gradient each, nothing clever.

It is slow and it is the measure of every faster engine: they must agree with it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

from gradleak.core.budget import Budget
from gradleak.matching.distances import Distance
from gradleak.matching.dummies import Dummies
from gradleak.matching.parameters import comparable, filled, matched_in_each, matched_parameters, weights_of
from gradleak.models.text import TextModel


class NaiveEngine:
    """Distances between the gradients of dummies and those of updates, by plain automatic differentiation."""

    def __init__(
        self,
        model: TextModel,
        targets: Sequence[Mapping[str, Tensor]],
        distance: Distance,
        *,
        only: Collection[str] | None = None,
        weights: Sequence[Mapping[str, float]] | None = None,
        masks: Sequence[Mapping[str, Tensor]] | None = None,
        budget: Budget | None = None,
    ) -> None:
        """`only` restricts the match to some parameters, `weights` gives for every update how much each counts.

        `masks` has for every update and parameter the coordinates that count, as zeros and ones. `budget` ends the
        work between two passes with `Stopped`.
        """
        self._budget = budget or Budget()
        self.model = model
        self.distance = distance
        targets = comparable(targets, distance)
        self.names = matched_parameters(model, targets, only)
        self.weights = weights_of(self.names, weights, matched_in_each(model, targets, only))
        dtype = model.dtype
        self.targets = [
            [t[name].to(model.device, dtype) for name in self.names] for t in filled(targets, self.names, model)
        ]
        self.masks: list[list[Tensor]] | None = None
        if masks is not None:
            self.masks = [
                [m[name].to(model.device, dtype) for name in self.names] for m in filled(masks, self.names, model)
            ]

    def values(self, dummies: Dummies) -> Tensor:
        """The distance of every row, (R,)."""
        rows = [self._total(dummies, row, self.terms(dummies, row, False)) for row in range(len(dummies))]
        return torch.cat(rows).detach()

    def values_and_gradients(self, dummies: Dummies) -> tuple[Tensor, Tensor]:
        """The distance of every row, (R,), and its derivative by the row's embeddings, (R, B, n, d)."""
        values, gradients = [], []
        for row in range(len(dummies)):
            leaf = dummies.row(row).embeds.requires_grad_()
            value = self._total(dummies, row, self.terms(dummies, row, True, leaf))
            (gradient,) = torch.autograd.grad(value.sum(), leaf)
            values.append(value.detach())
            gradients.append(gradient)
        return torch.cat(values), torch.cat(gradients)

    def _total(self, dummies: Dummies, row: int, terms: Sequence[Tensor]) -> Tensor:
        return self.distance.total(terms, self.weights[:, int(dummies.target[row])])

    def terms(self, dummies: Dummies, row: int, differentiable: bool, embeds: Tensor | None = None) -> list[Tensor]:
        """One row's term of every parameter, each (1,)."""
        self._budget.check()
        here = dummies.row(row)
        here = here.crop(int(here.widths))
        inputs = here.embeds if embeds is None else embeds[:, :, : here.embeds.shape[2]]
        loss = self.model.loss(here.labels[0], embeds=inputs[0], mask=here.mask[0])
        parameters = dict(self.model.module.named_parameters())
        wanted = [parameters[name] for name in self.names]
        gradients: Sequence[Tensor] = torch.autograd.grad(loss, wanted, create_graph=differentiable)
        targets = self.targets[int(here.target)]
        if self.masks is not None:
            masks = self.masks[int(here.target)]
            gradients = [g * m for g, m in zip(gradients, masks, strict=True)]
            targets = [t * m for t, m in zip(targets, masks, strict=True)]
        return [
            self.distance.from_dense(g.reshape(1, -1), t.reshape(1, -1))
            for g, t in zip(gradients, targets, strict=True)
        ]
