"""The fast engine: many guesses in one pass, gradients compared in factors, none ever formed.

See docs/engine.md for the mathematics and the measurements. It agrees with `NaiveEngine`, which tests hold it to.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol, cast

import torch
from torch import Tensor

from gradleak.core.budget import Budget
from gradleak.core.errors import GradleakError
from gradleak.core.memory import SHARE, free_memory
from gradleak.matching.capture import Capture, Gradients
from gradleak.matching.coordinates import SPARSE, coordinate_term, sparse_term
from gradleak.matching.distances import Distance
from gradleak.matching.dummies import Dummies
from gradleak.matching.factored import Factored, Factors, squared_norm
from gradleak.matching.kernels import fastest_products
from gradleak.matching.naive import NaiveEngine
from gradleak.matching.parameters import comparable, filled, matched_in_each, matched_parameters, weights_of
from gradleak.matching.products import products
from gradleak.matching.targets import Group, Target, groups_of, row_targets
from gradleak.models.text import TextModel

# Tokens of one pass: beyond this the matrix units are full and only memory grows.
TOKENS_AT_ONCE = 1024
# What starting a pass costs, in tokens of work (MiniLM: 0.08 s against 0.7 ms a token).
PASS_OVERHEAD = 110
# Copies of every captured activation alive at the peak of a pass. Measured on MiniLM and BERT-base size, 14 and 64
# tokens: 1.9 to 2.2 for values, 3.2 to 3.6 with derivatives; the rest is room.
COPIES_VALUES, COPIES_GRADIENTS = 3.0, 6.0


class Engine(Protocol):
    """Distances between the gradients of dummies and those of updates."""

    def values(self, dummies: Dummies) -> Tensor:
        """The distance of every row, (R,)."""
        ...

    def values_and_gradients(self, dummies: Dummies) -> tuple[Tensor, Tensor]:
        """The distance of every row, (R,), and its derivative by the row's embeddings, (R, B, n, d)."""
        ...


def buckets(widths: Sequence[int], batch: int) -> list[list[int]]:
    """Rows grouped by width so that padding and the cost of further passes are least together.

    >>> buckets([5, 80, 6, 81, 5], batch=1)
    [[3, 1], [2, 0, 4]]
    """
    by_width: dict[int, list[int]] = {}
    for row, width in enumerate(widths):
        by_width.setdefault(width, []).append(row)
    order = sorted(by_width, reverse=True)
    # cheapest[i]: the least cost of the widths from the i-th on, and where its first bucket ends
    cheapest: list[tuple[float, int]] = [(0.0, len(order))]
    for start in reversed(range(len(order))):
        rows, best = 0, (float("inf"), len(order))
        for end in range(start, len(order)):
            rows += len(by_width[order[end]])
            passes = max(1, -(-rows * order[start] * batch // TOKENS_AT_ONCE))
            cost = passes * PASS_OVERHEAD + rows * order[start] * batch + cheapest[len(order) - 1 - end][0]
            best = min(best, (cost, end + 1))
        cheapest.append(best)
    cheapest.reverse()
    rows_of_buckets, start = [], 0
    while start < len(order):
        end = cheapest[start][1]
        rows_of_buckets.append([row for width in order[start:end] for row in by_width[width]])
        start = end
    return rows_of_buckets


@dataclass(frozen=True)
class _Vectors:
    """Small parameters of one size: targets and masks (parameters, updates, size), weights (parameters, updates)."""

    names: list[str]
    targets: Tensor
    masks: Tensor | None
    weights: Tensor


class FactorEngine:
    """An engine that works on factors; parameters of layers without a rule are left to plain autograd."""

    def __init__(
        self,
        model: TextModel,
        targets: Sequence[Mapping[str, Tensor]],
        distance: Distance,
        *,
        tokens: int,
        only: Collection[str] | None = None,
        weights: Sequence[Mapping[str, float]] | None = None,
        masks: Sequence[Mapping[str, Tensor]] | None = None,
        memory: int | None = None,
        budget: Budget | None = None,
    ) -> None:
        """`tokens` is the largest number of tokens a batch can have: no gradient has a higher rank.

        Updates may hold different tensors; each is matched on its own, and a pass goes no deeper than any needs.

        `only` restricts the match to some parameters, `weights` gives for every update how much each counts. `masks`
        has for every update and parameter the coordinates that count, as zeros and ones. `memory` is how many bytes
        a pass may take. `budget` ends the work between two passes with `Stopped`.
        """
        self.model = model
        self._budget = budget or Budget()
        self.distance = distance
        self._free = free_memory(model.device)
        self.memory = memory if memory is not None else int(SHARE * self._free)
        targets = comparable(targets, distance)
        names = matched_parameters(model, targets, only)
        self._footprint, captured = self._probe()
        self.names = [name for name in names if name in captured]
        self._capture = Capture(model.module, self.names, model.adapter.family.rules)
        self.plain_names = [name for name in names if name not in captured]
        matched = matched_in_each(model, targets, only)
        self._weights = weights_of(self.names, weights, matched).to(model.token_embedding)
        self._total_weight = weights_of(names, weights, matched).to(model.token_embedding).sum(dim=0)
        self._sort_parameters(
            filled(targets, self.names, model), None if masks is None else filled(masks, self.names, model), tokens
        )
        self._plain = None
        if self.plain_names:
            self._plain = NaiveEngine(
                model, targets, distance, only=self.plain_names, weights=weights, masks=masks, budget=budget
            )
            self._plain_share = self._plain.weights.to(model.token_embedding).sum(dim=0)
            listing = ", ".join(self.plain_names[:3]) + (" ..." if len(self.plain_names) > 3 else "")
            warnings.warn(
                f"{len(self.plain_names)} parameters of {model.name} have no fast rule and are matched by plain "
                f"autograd, which is slow: {listing}",
                stacklevel=2,
            )

    def _sort_parameters(
        self,
        targets: Sequence[Mapping[str, Tensor]],
        masks: Sequence[Mapping[str, Tensor]] | None,
        tokens: int,
    ) -> None:
        """Matrices keep their targets in thin form; vectors of one size are stacked and handled together."""
        like = self.model.token_embedding
        parameters, weight = self.model.parameters(), dict(zip(self.names, self._weights, strict=True))
        self._matrices = [name for name in self.names if parameters[name].dim() > 1]
        self._matrix_weights = {name: weight[name] for name in self._matrices}
        self._targets = {n: Target([t[n].to(like).flatten(1) for t in targets], tokens) for n in self._matrices}
        self._masks = masks and {n: [m[n].to(like).flatten(1) for m in masks] for n in self._matrices}
        self._places = {
            name: [mask.nonzero().T for mask in each]
            for name, each in (self._masks or {}).items()
            if max(float(mask.mean()) for mask in each) < SPARSE
        }
        sizes: dict[int, list[str]] = {}
        for name in self.names:
            if parameters[name].dim() == 1:
                sizes.setdefault(parameters[name].numel(), []).append(name)

        def stacked(tensors: Sequence[Mapping[str, Tensor]], names: list[str]) -> Tensor:
            return torch.stack([torch.stack([t[name].to(like) for t in tensors]) for name in names])

        self._vectors = [
            _Vectors(
                names,
                stacked(targets, names),
                None if masks is None else stacked(masks, names),
                torch.stack([weight[name] for name in names]),
            )
            for names in sizes.values()
        ]

    def values(self, dummies: Dummies) -> Tensor:
        """The distance of every row, (R,)."""
        values = dummies.embeds.new_zeros(len(dummies))
        with self._kernels():
            for rows, part in self._parts(dummies, COPIES_VALUES):
                values[rows] = self._distances(part, differentiable=False).detach().to(values)
        if self._plain is not None:
            values += self._plain.values(dummies) * self._plain_factor(dummies)
        return values

    def values_and_gradients(self, dummies: Dummies) -> tuple[Tensor, Tensor]:
        """The distance of every row, (R,), and its derivative by the row's embeddings, (R, B, n, d)."""
        values = dummies.embeds.new_zeros(len(dummies))
        gradients = torch.zeros_like(dummies.embeds)
        with self._kernels():
            for rows, part in self._parts(dummies, COPIES_GRADIENTS):
                distances = self._distances(part, differentiable=True)
                (gradient,) = torch.autograd.grad(distances.sum(), part.embeds)
                values[rows] = distances.detach().to(values)
                gradients[rows, :, : gradient.shape[2]] = gradient.to(gradients)
        if self._plain is not None:
            plain_values, plain_gradients = self._plain.values_and_gradients(dummies)
            factor = self._plain_factor(dummies)
            values += plain_values * factor
            gradients += plain_gradients * factor[:, None, None, None]
        return values, gradients

    def _plain_factor(self, dummies: Dummies) -> Tensor:
        """What the plain engine's numbers count in ours: a mean over its own parameters becomes a share."""
        if not self.distance.averages:
            return torch.ones_like(dummies.target, dtype=dummies.embeds.dtype)
        return (self._plain_share / self._total_weight)[dummies.target].to(dummies.embeds)

    def _kernels(self) -> AbstractContextManager[None]:
        """The second library is slow at the small transposed products that single coordinates need."""
        by_coordinates = self.distance.needs_coordinates or self._masks
        return nullcontext() if by_coordinates else fastest_products(self.model.device)

    # --- one pass ---------------------------------------------------------------------------------

    def _distances(self, dummies: Dummies, *, differentiable: bool) -> Tensor:
        self._budget.check()
        rows, batch = dummies.embeds.shape[:2]
        gradients, _ = self._capture.gradients(
            lambda: self._losses(dummies), rows, batch, differentiable=differentiable
        )
        groups = groups_of(dummies.target)
        with torch.set_grad_enabled(differentiable):
            blocks = [self._vector_terms(bundle, gradients, dummies.target) for bundle in self._vectors]
            if self._matrices:
                blocks.append(self._matrix_terms(gradients, groups))
            summed = torch.cat(blocks).sum(dim=0)
        return summed / self._total_weight[dummies.target] if self.distance.averages else summed

    def _vector_terms(self, bundle: _Vectors, gradients: Gradients, target: Tensor) -> Tensor:
        """Weighted terms of all small parameters of one size together, (parameters, rows)."""
        dummy = torch.stack([gradients.small[name] for name in bundle.names])
        wanted = bundle.targets[:, target]
        if bundle.masks is not None:
            dummy, wanted = dummy * bundle.masks[:, target], wanted * bundle.masks[:, target]
        terms = self.distance.from_dense(dummy.flatten(0, 1), wanted.flatten(0, 1))
        return terms.view(dummy.shape[:2]) * bundle.weights[:, target]

    def _matrix_terms(self, gradients: Gradients, groups: Sequence[Group]) -> Tensor:
        """Weighted terms of all matrices, (matrices, rows)."""
        weights = torch.stack([self._matrix_weights[name] for name in self._matrices])
        weights = weights[:, row_targets(groups, weights.device)]
        if self.distance.needs_coordinates or self._masks:
            terms = [self._coordinates(name, gradients.factored[name], groups) for name in self._matrices]
            return torch.stack(terms) * weights
        inners: dict[str, Tensor] = {}
        squares: dict[str, Tensor] = {}
        for names in self._together(gradients):
            targets = [self._targets[name] for name in names]
            factored = [each for name in names for each in gradients.factored[name]]
            if len(factored) == len(names) and all(isinstance(each, Factors) for each in factored):
                inner, square = products(cast(list[Factors], factored), targets, groups)
                inners.update(zip(names, inner, strict=True))
                squares.update(zip(names, square, strict=True))
            else:  # one matrix, used several times or as a table
                inners[names[0]] = torch.stack([targets[0].inner(each, groups) for each in factored]).sum(dim=0)
                squares[names[0]] = squared_norm(factored)
        wanted = torch.stack([self._targets[name].square(groups) for name in self._matrices])
        inner, square = (torch.stack([each[name] for name in self._matrices]) for each in (inners, squares))
        return self.distance.from_products(inner, square, wanted) * weights

    def _together(self, gradients: Gradients) -> list[list[str]]:
        """Matrices that are used once and share an input and a form of target, in lists; all others alone."""
        lists: dict[object, list[str]] = {}
        for name in self._matrices:
            summands = gradients.factored[name]
            only = summands[0] if len(summands) == 1 else None
            key = (id(only.right), self._targets[name].thin is None) if isinstance(only, Factors) else name
            lists.setdefault(key, []).append(name)
        return list(lists.values())

    def _coordinates(self, name: str, summands: list[Factored], groups: Sequence[Group]) -> Tensor:
        targets = self._targets[name].tensors
        masks = self._masks[name] if self._masks else None
        only = summands[0] if len(summands) == 1 else None
        if isinstance(only, Factors):
            if name in self._places:
                return sparse_term(only.left, only.right, targets, self._places[name], groups, self.distance)
            return coordinate_term(only.left, only.right, targets, masks, groups, self.distance)
        rows = row_targets(groups, targets[0].device)
        dense, wanted = torch.stack([each.dense() for each in summands]).sum(dim=0), torch.stack(targets)[rows]
        if masks is not None:
            dense, wanted = dense * torch.stack(masks)[rows], wanted * torch.stack(masks)[rows]
        return self.distance.from_dense(dense.flatten(1), wanted.flatten(1))

    def _losses(self, dummies: Dummies) -> Tensor:
        """Every row's mean loss, as its client would have computed it, (R,)."""
        rows, batch, width = dummies.mask.shape
        mask = dummies.mask.reshape(rows * batch, width)
        logits = self.model.logits(embeds=dummies.embeds.reshape(rows * batch, width, -1), mask=mask)
        return self.model.goal.row_losses(logits, dummies.labels.flatten(0, 1), mask, rows)

    # --- what fits into one pass ------------------------------------------------------------------

    def _parts(self, dummies: Dummies, copies: float) -> list[tuple[Tensor, Dummies]]:
        """The rows in passes: of similar width, in the order of their targets, within the memory allowed."""
        batch = dummies.embeds.shape[1]
        parts: list[tuple[Tensor, Dummies]] = []
        if not self.names:  # everything is left to the plain engine
            return parts
        for rows in buckets(dummies.widths.tolist(), batch):
            width = int(dummies.widths[rows].max())
            most = self._rows_that_fit(width, batch, copies)
            for first in range(0, len(rows), most):
                chosen = sorted(rows[first : first + most], key=lambda row: (int(dummies.target[row]), row))
                index = torch.tensor(chosen, device=dummies.embeds.device)
                here = dummies.take(index).crop(width)
                embeds = here.embeds.detach().to(self.model.token_embedding, copy=True)  # in the model's precision
                parts.append((index, here.with_embeds(embeds.requires_grad_())))
        return parts

    def _rows_that_fit(self, width: int, batch: int, copies: float) -> int:
        tokens = width * batch
        activations, attention = self._footprint
        needed = copies * self.model.token_embedding.element_size() * tokens * (activations + width * attention)
        if needed > self._free:
            raise GradleakError(
                f"matching {batch:,} sentences of {width} tokens needs about {needed / 1e9:,.1f} GB of memory, and "
                f"{self._free / 1e9:,.1f} GB are free"
            )
        return max(1, min(TOKENS_AT_ONCE // tokens, int(self.memory / needed)))

    def _probe(self) -> tuple[tuple[float, float], set[str]]:
        """One tiny pass: which parameters the rules can read, and how many numbers a token adds to memory."""
        model, rows, batch = self.model, 2, 3
        # Unlike the number of sequences: what runs over positions alone must not be taken for a batch.
        width = rows * batch + 1
        shape = (rows, batch, width)
        generator = torch.Generator().manual_seed(0)
        embeds = torch.randn(*shape, model.width, generator=generator).to(model.token_embedding)
        labels = model.goal.no_targets(shape, model.goal.outputs(model))
        target = torch.zeros(rows, dtype=torch.long)
        mask = torch.ones(shape, dtype=torch.bool)
        dummies = Dummies(embeds.requires_grad_(), mask, labels, target).to(model.device)
        # Everything is captured here, whatever subset is matched: a pass leaves its activations all the same.
        every = Capture(model.module, list(model.parameters()), model.adapter.family.rules)
        gradients, _ = every.gradients(lambda: self._losses(dummies), rows, batch, differentiable=False)
        factors = [each for summands in gradients.factored.values() for each in summands if isinstance(each, Factors)]
        numbers = sum(each.left.numel() + each.right.numel() for each in factors)
        heads = int(model.module.config.num_attention_heads) * model.adapter.depth
        return (numbers / mask.numel(), float(heads)), set(gradients.factored) | set(gradients.small)
