"""How much of an update each next token explains, beside what it explains of updates that public text makes.

A copy of the model whose upper layers step along the update with its singular values inverted finds the batch's own
predictions likelier than before (`attacks/film/attribution.py`). So it finds some that were not there: in an odd
context every gradient is large and explains a little of anything. How much by chance, the updates of public batches
say, which the token certainly was not in: what counts is how far it stands above what it explains of those.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gradleak.attacks.evidence.whitening import Moments, Root, turned
from gradleak.attacks.film.attribution import LEAST_LAYERS, SHARE_OF_LAYERS, STEP, upper_layers
from gradleak.core.budget import Budget
from gradleak.models.text import TextModel

# Public batches that are compared with, and public sentences that show how gradients spread.
COMPARED, SPREAD = 4, 64
# Of these as many at least, however little time there is.
FEWEST = 8
# The likeliest tokens after a prefix: what they explain of public updates is what anything explains there.
LIKELY = 48
# A token's own chance is estimated from few batches, so it is taken to be this part of the usual at least.
FLOOR = 0.05
# Features beyond these limits say no more: shares, deviations, evidence and precision.
SHARES, DEVIATIONS, EVIDENCE, PRECISION = (-0.5, 1.5), (-4.0, 12.0), (-30.0, 60.0), 20.0
# Numbers that say how much of the update a token explains, for every view.
FEATURES = 5

Tensors = Mapping[str, Tensor]


class View(NamedTuple):
    """Layers that step together, and whether along an update made even by how gradients of public text spread."""

    first: int
    last: int
    even: bool


def views_of(model: TextModel, groups: int) -> list[View]:
    """So many groups of layers, from the head down, each as it is and made even."""
    count = len(model.adapter.layers)
    size = min(count, max(LEAST_LAYERS, count // SHARE_OF_LAYERS))
    ends = [count - size * group for group in range(groups) if count - size * group > 0]
    return [View(max(0, end - size), end, even) for end in ends for even in (False, True)]


class Moved:
    """A copy of the upper layers, some of which took a step along an update with its singular values inverted."""

    def __init__(self, model: TextModel, tensors: Tensors, view: View, roots: Mapping[str, Root]) -> None:
        self.first = view.first
        self.upper = upper_layers(model, view.first, _of_view(model, tensors, view))
        # What the batch's own tokens score on average.
        self.unit = 0.0
        own = dict(self.upper.get_submodule(model.adapter.family.layers).named_parameters())
        for name, (where, gradient) in _of_view(model, tensors, view).items():
            root = roots[name] if view.even else Root()
            direction = root.times(turned(root.times(gradient), 1.0))
            size = float(direction.norm())
            if not size:  # an update so large that its inverse vanishes
                continue
            weight = own[where]
            reach = STEP * float(weight.detach().norm() or 1.0) / size
            with torch.no_grad():
                weight -= reach * direction.to(weight)
            self.unit += reach * float((direction * gradient).sum())
        self.unit = self.unit or 1.0  # an update that holds nothing of these layers moves nothing


def _of_view(model: TextModel, tensors: Tensors, view: View) -> dict[str, tuple[str, Tensor]]:
    """The matrices of a view's layers, and where each is, counted from the first of them."""
    found = {}
    for index in range(view.first, view.last):
        layer = model.adapter.layers[index]
        above = model.adapter.name_of(layer)
        for name, _ in layer.named_parameters():
            gradient = tensors.get(f"{above}.{name}")
            if gradient is not None and gradient.dim() == 2 and bool(gradient.any()):
                found[f"{above}.{name}"] = f"{index - view.first}.{name}", gradient.float()
    return found


@dataclass(frozen=True)
class Comparison:
    """What public text gives: copies that stepped along updates of public batches, and how gradients spread."""

    views: list[View]
    roots: Mapping[str, Root]
    public: list[list[Moved]]
    """For every view, one of each batch."""
    scales: list[float]
    """For every view, the usual variance of what a token explains by chance."""

    def only(self, kept: Callable[[View], bool]) -> Comparison:
        """With some of the views."""
        numbers = [number for number, view in enumerate(self.views) if kept(view)]
        return Comparison(
            [self.views[n] for n in numbers],
            self.roots,
            [self.public[n] for n in numbers],
            [self.scales[n] for n in numbers],
        )


def comparison(
    model: TextModel,
    views: Sequence[View],
    updates: Sequence[Tensors],
    sentences: Sequence[Sequence[int]],
    gradient: Callable[[Sequence[int], Sequence[str]], Tensors],
    budget: Budget,
    known: dict[tuple[str, ...], Moments] | None = None,
) -> Comparison:
    """Compares with these updates of public batches; the gradients of public sentences show how gradients spread.

    Layers of which the updates hold nothing are left out, and sentences that there is no time for. `gradient` is
    asked for the matrices of the views alone. What it gave before is `known`, to which the rest is added.
    """
    held = [view for view in views if all(_of_view(model, tensors, view) for tensors in updates)]
    names = sorted({name for view in held for name in _of_view(model, updates[0], view)})
    shapes = [(int(updates[0][name].shape[0]), int(updates[0][name].shape[1])) for name in names]
    moments = ({} if known is None else known).setdefault(tuple(names), Moments(shapes))
    for sentence in sentences[moments.count :]:
        if budget.over and moments.count >= FEWEST:
            break
        own = gradient(sentence, names)
        moments.add(torch.cat([own[name].float().flatten() for name in names] or [torch.zeros(0)])[None])
    roots = dict(zip(names, moments.whitening().roots, strict=True))
    public = [[Moved(model, tensors, view, roots) for tensors in updates] for view in held]
    made = Comparison(held, roots, public, [1.0 for _ in held])
    return replace(made, scales=_scales(model, made, sentences[:COMPARED]))


@torch.no_grad()
def _scales(model: TextModel, made: Comparison, rows: Sequence[Sequence[int]]) -> list[float]:
    """The usual variance of what a likely token of public text explains of public updates, for every view."""
    chance = Predictions(model, made, [public[0] for public in made.public])
    variances: list[list[Tensor]] = [[] for _ in made.views]
    for row in rows:
        seen = chance.along(row)
        log_probs = chance.log_probs(seen)
        likely = log_probs.topk(min(LIKELY, log_probs.shape[1]), dim=1)
        weights, outputs = likely.values.softmax(dim=1), chance.outputs[likely.indices]
        for own, shifts, public in zip(variances, seen.shifts, made.public, strict=True):
            moved = zip(shifts[1:], public, strict=True)
            shares = torch.stack([_shares(shift, outputs, weights, outputs) / m.unit for shift, m in moved])
            own.append(shares.square().mean(dim=0).flatten())
    return [max(float(torch.cat(own).median()), 1e-12) for own in variances]


@dataclass(frozen=True)
class Seen:
    """States after prefixes, (prefixes, width), and how far each copy of each view moved them."""

    states: Tensor
    shifts: list[list[Tensor]]

    def at(self, rows: Tensor) -> Seen:
        """After these prefixes only."""
        return Seen(self.states[rows], [[shift[rows] for shift in of_view] for of_view in self.shifts])


class Predictions:
    """Reads by the model, by copies that stepped along an update, and by those that stepped along public ones."""

    def __init__(self, model: TextModel, compared: Comparison, moved: Sequence[Moved]) -> None:
        self.model, self.compared = model, compared
        self.moved = [[own, *public] for own, public in zip(moved, compared.public, strict=True)]
        self.outputs: Tensor = model.module.get_output_embeddings().weight.detach()

    @staticmethod
    def of(model: TextModel, compared: Comparison, tensors: Tensors) -> Predictions:
        """The predictions that an update's tensors explain."""
        return Predictions(model, compared, [Moved(model, tensors, view, compared.roots) for view in compared.views])

    @property
    def features(self) -> int:
        """How many numbers say what a token explains."""
        return FEATURES * len(self.compared.views)

    def log_probs(self, seen: Seen) -> Tensor:
        """Of the whole vocabulary, with what can stand in no text ruled out."""
        log_probs = self.model.output_logits(seen.states).log_softmax(dim=1)
        return log_probs.masked_fill(~self.model.text_tokens, RULED_OUT)

    @torch.no_grad()
    def along(self, row: Sequence[int]) -> Seen:
        """What is seen after each token of a row."""
        ids = torch.tensor([list(row)], device=self.model.device)
        plain = self.model.module.base_model(input_ids=ids, output_hidden_states=True, use_cache=False)
        return self._seen(
            plain, lambda moved, between: moved.upper(inputs_embeds=between, use_cache=False), slice(None)
        )

    def testimony(self, row: Sequence[int]) -> float:
        """How many deviations a whole sentence explains above chance: all its predictions but the first together."""
        _, explained = labels_along(self, row[:-1], torch.arange(len(self.outputs), device=self.model.device))
        labels = torch.tensor(row[1:], device=self.model.device)[:, None, None].expand(-1, 1, self.features)
        deviations = explained.gather(1, labels)[1:, 0, 1::FEATURES]
        return float(deviations.mean(dim=1).sum()) / max(1, len(deviations)) ** 0.5

    def reading(self) -> Reading:
        """A reading that begins with empty caches."""
        return Reading(self)

    def _seen(self, plain: Any, run: Callable[[Moved, Tensor], Any], places: Any) -> Seen:
        states = plain.last_hidden_state[:, places].flatten(0, -2)
        shifts = [
            [
                run(moved, plain.hidden_states[moved.first]).last_hidden_state[:, places].flatten(0, -2) - states
                for moved in of_view
            ]
            for of_view in self.moved
        ]
        return Seen(states, shifts)

    def explained(self, seen: Seen, log_probs: Tensor, outputs: Tensor) -> Tensor:
        """What tokens explain after each prefix, (prefixes, tokens, features).

        `outputs` are the tokens' rows of the output matrix, (tokens, width), or others after every prefix, (prefixes,
        tokens, width); `log_probs` are theirs.
        """
        likely = log_probs.topk(min(LIKELY, log_probs.shape[1]), dim=1)
        weights = likely.values.softmax(dim=1)
        rows = torch.arange(len(log_probs), device=log_probs.device)[:, None]
        usual = outputs[likely.indices] if outputs.dim() == 2 else outputs[rows, likely.indices]
        columns: list[Tensor] = []
        for moved, shifts, scale in zip(self.moved, seen.shifts, self.compared.scales, strict=True):
            both = zip(shifts, moved, strict=True)
            own, *public = [_shares(shift, outputs, weights, usual) / each.unit for shift, each in both]
            spread = torch.stack(public).square().mean(dim=0)
            variance = (spread + spread.gather(1, likely.indices).mean(dim=1, keepdim=True)) / 2 + FLOOR * scale
            deviation = variance.sqrt()
            columns += [
                own.clamp(*SHARES),
                (own / deviation).clamp(*DEVIATIONS),
                (own / variance * scale).clamp(*EVIDENCE),
                (scale / variance).clamp(max=PRECISION),
                deviation.log(),
            ]
        return torch.stack(columns, dim=-1) if columns else log_probs.new_zeros(*log_probs.shape, 0)


# The log-probability of what can stand in no text.
RULED_OUT = -30.0


def _shares(shift: Tensor, outputs: Tensor, weights: Tensor, usual: Tensor) -> Tensor:
    """How much likelier a moved state makes tokens, (prefixes, tokens); the likeliest stand for all others.

    A cap on logits is passed over: it bends what every update explains by as much.
    """
    raised = shift @ outputs.T if outputs.dim() == 2 else torch.einsum("ptw,pw->pt", outputs, shift)
    return raised - (weights * torch.einsum("plw,pw->pl", usual, shift)).sum(dim=1, keepdim=True)


class Reading:
    """Sentences read token by token by the model and by all its copies, each with a cache."""

    def __init__(self, predictions: Predictions) -> None:
        from transformers import DynamicCache

        self._predictions = predictions
        self.cache = DynamicCache()
        """Keys and values of the plain model, a row per sentence."""
        self._caches = {moved: DynamicCache() for of_view in predictions.moved for moved in of_view}

    @torch.no_grad()
    def read(self, ids: Tensor) -> Seen:
        """What is seen after the last of further tokens, (sentences, tokens)."""
        plain = self._predictions.model.module.base_model(
            input_ids=ids, past_key_values=self.cache, use_cache=True, output_hidden_states=True
        )

        def run(moved: Moved, between: Tensor) -> Any:
            return moved.upper(inputs_embeds=between, past_key_values=self._caches[moved], use_cache=True)

        return self._predictions._seen(plain, run, slice(-1, None))

    def forked(self, rows: Tensor) -> Reading:
        """A reading of its own that goes on from these rows; this one stays as it is."""
        fork = Reading(self._predictions)
        fork.cache = copy.deepcopy(self.cache)
        fork._caches = {moved: copy.deepcopy(cache) for moved, cache in self._caches.items()}
        fork.keep(rows)
        return fork

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows only, in this order; a row may come twice."""
        for cache in (self.cache, *self._caches.values()):
            cache.batch_select_indices(rows)


class BagReader:
    """Reads beams whose tokens are all of one bag: log-probabilities among the bag, and what each explains."""

    def __init__(self, predictions: Predictions, bag: Tensor) -> None:
        self._predictions, self._reading = predictions, predictions.reading()
        self._bag = bag

    @property
    def cache(self) -> Any:
        return self._reading.cache

    def first(self, openings: Tensor) -> tuple[Tensor, Tensor]:
        self._reading = self._predictions.reading()
        return self._judged(openings)

    def further(self, rows: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        self._reading.keep(rows)
        return self._judged(tokens[:, None])

    def _judged(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        return _among(self._predictions, self._reading.read(ids), self._bag)


def labels_along(predictions: Predictions, row: Sequence[int], bag: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probability among the bag of each of its tokens after each place of a row, and what each explains."""
    return _among(predictions, predictions.along(row), bag)


def labels_after(predictions: Predictions, row: Sequence[int], bag: Tensor) -> tuple[Tensor, Tensor]:
    """The same after the last place alone."""
    return _among(predictions, predictions.along(row).at(torch.tensor([len(row) - 1])), bag)


@torch.no_grad()
def _among(predictions: Predictions, seen: Seen, bag: Tensor) -> tuple[Tensor, Tensor]:
    log_probs = predictions.model.output_logits(seen.states, bag).log_softmax(dim=1)
    return log_probs, predictions.explained(seen, log_probs, predictions.outputs[bag])
