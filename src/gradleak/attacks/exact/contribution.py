"""What a recovered sentence contributes to an update: its label and its weight, with which it can be removed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from gradleak.attacks.exact.slopes import SlopeSearch, scaled
from gradleak.attacks.spans.probe import Probe
from gradleak.attacks.spans.spans import Span
from gradleak.models.adapter import Part
from gradleak.models.hooks import of_this_thread
from gradleak.models.tasks import Label
from gradleak.models.text import TextModel

# How far from the identity the test below may be, relative to it.
MISFIT = 0.05
# Slopes this far off a multiple of another are one, in double precision.
SAME_SLOPE = 1e-13
# What the sum of sentences' gradients may leave of an update: so many times its noise, or this share of it. Rows of a
# matrix that are looked at for that.
ABOVE_NOISE, LEFT = 10.0, 1e-3
SOME_ROWS = 128

Tensors = Mapping[str, Tensor]


# Combined slopes that are tried at most: each takes a pass of the model.
MOST_SLOPES = 400


class Evidence(NamedTuple):
    """What an update gave away before its sentences were looked for, and that tells what they were trained for."""

    sentences: int | None = None
    predicted: Sequence[int] = ()


NO_EVIDENCE = Evidence()


@dataclass(frozen=True)
class Contribution:
    """A sentence's label, and the share of the update's mean that is its own gradient (1/B where it occurs once).

    `gradient` is what it adds to the update, `places` the number of its tokens by which this was found. The share is
    None where only that product shows.
    """

    label: Label | None
    share: float | None
    misfit: float
    gradient: Tensors
    places: int


class SentenceGradients:
    """The gradients of a single sentence's loss under several labels, by as few passes of the model as they take.

    One forward pass serves all labels that the model does not read. What follows from the loss's slope by the logits
    is linear in it, so slopes that are multiples of one another, as those of two classes are, share a backward pass.
    """

    def __init__(self, model: TextModel, tokens: list[int]) -> None:
        self._model, self._batch, self._parameters = model, model.pad([tokens]), model.parameters()
        self._logits: Tensor | None = None
        self._last: tuple[Tensor, tuple[str, ...], Tensors] | None = None

    def under(self, label: Label | None, names: Collection[str]) -> Tensors:
        """The gradient under a label, of some parameters."""
        goal, batch = self._model.goal, self._batch
        targets = goal.targets(None if label is None else [label], batch.ids, goal.outputs(self._model))
        if self._logits is None or goal.inputs(self._model, targets, 1):
            self._logits = self._model.logits(ids=batch.ids, mask=batch.mask, targets=targets)
            self._last = None
        (slope,) = torch.autograd.grad(goal.loss(self._logits, targets, batch.mask), self._logits, retain_graph=True)
        if self._last is not None and self._last[1] == tuple(names):
            before, _, gradient = self._last
            multiple = float((slope * before).sum() / before.square().sum().clamp_min(1e-300))
            if float((slope - multiple * before).norm()) <= SAME_SLOPE * float(slope.norm()):
                return scaled(gradient, multiple)
        wanted = [self._parameters[name] for name in names]
        found = torch.autograd.grad(self._logits, wanted, slope, allow_unused=True, retain_graph=True)
        made = {name: g.double() for name, g in zip(names, found, strict=True) if g is not None}
        self._last = (slope, tuple(names), made)
        return made


def sentence_gradient(model: TextModel, tokens: list[int], label: Label | None, names: Collection[str]) -> Tensors:
    """The gradient of a single sentence's loss, of some parameters."""
    return SentenceGradients(model, tokens).under(label, names)


def find_contribution(
    model: TextModel,
    update: Tensors,
    span: Span,
    part: Part,
    tokens: list[int],
    places: list[int] | None = None,
    most_misfit: float = MISFIT,
    least: float = 0.0,
    evidence: Evidence = NO_EVIDENCE,
) -> Contribution | None:
    """The label and share of a sentence by a matrix of the update, or None if no label fits.

    With G the update's matrix, X the sentence's inputs to it and D its output gradients, G is the share times DX plus
    products of other tokens. If all of them are independent, X times the inverse of G times D is the identity over
    the share, and for no other D is it a positive multiple of the identity. Positions whose state other sentences
    have too must be left out: `places` are those to look at, and of these the first are left out until the rest fit,
    as a sentence that was not recovered can begin alike. At a single place any positive number is a multiple of the
    identity; then the only label that makes it a share is given, and None if several do. Where the update is an
    estimate, a larger `most_misfit` may be allowed, and singular values below the share `least` of the largest are
    left out. Where labels cannot be tried, D is solved for (`slopes.py`), with what else the update gave away.
    """
    carrier = part.carrier(update)
    if carrier is None:
        return None
    runs = [run.double() for run in _states(model, part, tokens)]
    runs = runs if carrier.map is None else [run @ carrier.map.double().T for run in runs]
    states, every = runs[0], torch.cat(runs)
    matrix = carrier.matrix.double()
    # The pseudo-inverse within the span: the span is known, so what lies outside it is noise and is left out.
    inverse = torch.linalg.pinv(matrix @ span.basis.T, rtol=least)
    seen = (states @ span.basis.T) @ inverse
    of_states = torch.linalg.pinv(every)[:, : len(states)]

    def response(gradient: Tensors) -> Tensor | None:
        """What is the identity, over the share, for the gradient of the sentence as it was."""
        own = part.carrier(gradient)
        if own is None or own.name != carrier.name:
            return None
        return seen @ (own.matrix @ of_states)

    classes = model.goal.label_choices(model)
    if not classes:
        return _by_slope(model, list(update), carrier.name, tokens, response, places, evidence, most_misfit)
    looked_at = list(range(len(states))) if places is None else places
    gradients = SentenceGradients(model, tokens)
    # The backward pass of two classes is one, so it may as well be of all that is removed in the end.
    tried = list(update) if len(classes) <= 2 else [carrier.name]
    fits: list[Contribution] = []
    for label in classes:
        product = response(gradients.under(label, tried))
        if product is None:
            continue
        starts = range(1 if places is None else len(looked_at))
        tested = (_multiple_of_identity(product, looked_at[start:]) for start in starts)
        for count, (scale, misfit) in zip(range(len(looked_at), 0, -1), tested, strict=False):
            if scale > 0 and misfit < most_misfit:
                fits.append(Contribution(label, 1 / scale, misfit, {}, count))
                break
    most = max((each.places for each in fits), default=0)
    best = [each for each in fits if each.places == most]
    if most == 1:
        best = [each for each in best if each.share is not None and each.share <= 1 + MISFIT]
        best = best if len(best) == 1 else []
    if not best:
        return None
    own = min(best, key=lambda each: each.misfit)
    return replace(own, gradient=scaled(gradients.under(own.label, list(update)), own.share or 0.0))


def _by_slope(
    model: TextModel,
    names: Sequence[str],
    carrier: str,
    tokens: list[int],
    response: Callable[[Tensors], Tensor | None],
    places: list[int] | None,
    evidence: Evidence,
    most_misfit: float,
) -> Contribution | None:
    """The same where labels cannot be tried."""
    search = SlopeSearch(model, tokens, evidence.predicted)
    for basis in search.basis():
        if len(basis) > MOST_SLOPES:
            continue
        found = [response(search.gradient(slope, [carrier])) for slope in basis]
        chosen = [each if places is None else each[places][:, places] for each in found if each is not None]
        solved = search.solve(basis, chosen, evidence.sentences) if len(chosen) == len(basis) else None
        if solved is not None and solved.misfit < most_misfit:
            gradient = search.gradient(solved.of_logits, names)
            count = len(tokens) if places is None else len(places)
            return Contribution(solved.label, solved.share, solved.misfit, gradient, count)
    return None


def _multiple_of_identity(product: Tensor, places: list[int]) -> tuple[float, float]:
    """The multiple of the identity nearest to a matrix at some places, and the relative distance from it."""
    chosen = product[places][:, places]
    scale = float(chosen.diagonal().mean())
    eye = torch.eye(len(chosen), dtype=chosen.dtype, device=chosen.device)
    return scale, float((chosen / scale - eye).norm() / len(chosen) ** 0.5) if scale else float("inf")


def add_up_to(model: TextModel, update: Tensors, span: Span, part: Part, sentences: Sequence[list[int]]) -> bool:
    """Whether the gradients of these sentences, with some label each, add up to the update.

    They are compared in a single matrix, whose span shows the noise. A sentence that is missing, or of which only
    the beginning was found, leaves far more.
    """
    carrier = part.carrier(update)
    if carrier is None:
        return False
    gradients = [each for s in sentences for each in _possible_gradients(model, s, carrier.name)]
    own = [each.matrix for each in (part.carrier(gradient) for gradient in gradients) if each is not None]
    if not own:
        return False
    columns = torch.stack([matrix[:SOME_ROWS].flatten() for matrix in own], dim=1)
    columns = columns / columns.norm(dim=0).clamp_min(1e-300)
    wanted = carrier.matrix[:SOME_ROWS].double().flatten()
    left = wanted - columns @ (torch.linalg.pinv(columns) @ wanted)
    noise = span.noise * float(carrier.matrix.norm()) * len(wanted) ** 0.5
    return float(left.norm()) <= max(ABOVE_NOISE * noise, LEFT * float(wanted.norm()))


def _possible_gradients(model: TextModel, tokens: list[int], name: str) -> list[Tensors]:
    """The gradients of a sentence that its own is one of, or a combination of."""
    classes = model.goal.label_choices(model)
    if classes:
        gradients = SentenceGradients(model, tokens)
        return [gradients.under(label, [name]) for label in classes]
    search = SlopeSearch(model, tokens, ())
    return [search.gradient(slope, [name]) for basis in search.basis()[:1] for slope in basis]


def without(update: Tensors, contribution: Contribution) -> dict[str, Tensor]:
    """The update without the sentence."""
    return {
        name: tensor - contribution.gradient[name] if name in contribution.gradient else tensor
        for name, tensor in update.items()
    }


def _states(model: TextModel, part: Part, tokens: list[int]) -> list[Tensor]:
    """What the part sees of a sentence, (tokens, width), in each of its runs: several where layers are shared."""
    batch = model.pad([tokens])
    with torch.no_grad():
        if not model.adapter.shared:
            return [seen[0] for seen in Probe(model, [part])(input_ids=batch.ids, mask=batch.mask.long())]
        runs: list[Tensor] = []
        hook = part.module.register_forward_pre_hook(of_this_thread(lambda _, inputs: runs.append(inputs[0][0])))
        try:
            model.logits(ids=batch.ids, mask=batch.mask)
        finally:
            hook.remove()
        return runs
