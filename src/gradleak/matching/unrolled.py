"""Matching weights that moved by several local steps: the steps are taken again, and differentiated through.

One guess at a time and plain autograd, like the oracle: exact for any step size, and meant for few steps. Dummies
are taken in the order of the client's mini-batches. The token embedding stays as it is meanwhile, since dummies do
not read it; with the step sizes of fine-tuning that is far below everything else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from gradleak.core.budget import Budget
from gradleak.matching.distances import Distance
from gradleak.matching.dummies import Dummies
from gradleak.matching.parameters import comparable, filled, matched_in_each, matched_parameters, weights_of
from gradleak.models.text import TextModel
from gradleak.updates.client_rule import ClientRule


class _Loss(nn.Module):
    """The model's loss as a module, so that its weights can be replaced for one call."""

    def __init__(self, model: TextModel) -> None:
        super().__init__()
        self.module = model.module
        self._model = model

    def forward(self, labels: Tensor, **inputs: Any) -> Tensor:
        return self._model.loss(labels, **inputs)


class UnrolledEngine:
    """Distances between the way the dummies would move the weights and the way the update did."""

    def __init__(
        self,
        model: TextModel,
        targets: Sequence[Mapping[str, Tensor]],
        distance: Distance,
        rules: Sequence[ClientRule],
        budget: Budget | None = None,
    ) -> None:
        """`budget` ends the work between two steps of a client with `Stopped`. The rules must be plain SGD's."""
        if not all(rule.local and rule.plain for rule in rules):
            raise ValueError("only plain steps of SGD can be taken again")
        self._budget = budget or Budget()
        self.model = model
        self.distance = distance
        self.rules = rules
        targets = comparable(targets, distance)
        self.names = matched_parameters(model, targets)
        self.weights = weights_of(self.names, None, matched_in_each(model, targets))
        like = model.token_embedding
        self.targets = [
            [target[name].to(like) / rule.lr for name in self.names]
            for target, rule in zip(filled(targets, self.names, model), rules, strict=True)
        ]
        self._loss = _Loss(model)

    def values(self, dummies: Dummies) -> Tensor:
        """The distance of every row, (R,)."""
        rows = [self._distance(dummies.row(row), create_graph=False) for row in range(len(dummies))]
        return torch.cat(rows).detach()

    def values_and_gradients(self, dummies: Dummies) -> tuple[Tensor, Tensor]:
        """The distance of every row, (R,), and its derivative by the row's embeddings, (R, B, n, d)."""
        values, gradients = [], []
        for row in range(len(dummies)):
            here = dummies.row(row)
            here = here.with_embeds(here.embeds.detach().requires_grad_())
            value = self._distance(here, create_graph=True)
            (gradient,) = torch.autograd.grad(value.sum(), here.embeds)
            values.append(value.detach())
            gradients.append(gradient)
        return torch.cat(values), torch.cat(gradients)

    def _distance(self, row: Dummies, *, create_graph: bool) -> Tensor:
        number = int(row.target)
        rule = self.rules[number]
        moved = self._movement(row, rule, create_graph)
        terms = [
            self.distance.from_dense(m.reshape(1, -1), t.reshape(1, -1))
            for m, t in zip(moved, self.targets[number], strict=True)
        ]
        return self.distance.total(terms, self.weights[:, int(row.target)])

    def _movement(self, row: Dummies, rule: ClientRule, create_graph: bool) -> list[Tensor]:
        """The sum of the gradients along the client's steps, for every matched parameter."""
        first = {name: p.detach().requires_grad_() for name, p in self.model.parameters().items()}
        weights = dict(first)
        total: dict[str, Tensor] = {}
        size = row.embeds.shape[1]
        parts = [part for step in rule.mini_batches(size) for part in step]  # plain steps have one each
        for number, part in enumerate(parts):
            self._budget.check()
            inputs = {"embeds": row.embeds[0, part], "mask": row.mask[0, part]}
            named = {f"module.{name}": weight for name, weight in weights.items()}
            loss = functional_call(self._loss, named, (row.labels[0, part],), inputs)
            last = number == len(parts) - 1
            gradients = torch.autograd.grad(
                loss, list(weights.values()), create_graph=create_graph, allow_unused=True
            )
            for (name, weight), gradient in zip(list(weights.items()), gradients, strict=True):
                if gradient is None:
                    continue
                total[name] = total[name] + gradient if name in total else gradient
                if not last:
                    moved = weight - rule.lr * gradient
                    weights[name] = moved if create_graph else moved.detach().requires_grad_()
        return [total[name] for name in self.names]
