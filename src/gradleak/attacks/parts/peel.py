"""Take a recovered sentence out of an update, once it is known which label it had and how much it weighs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.attacks.parts.probe import Probe
from gradleak.attacks.parts.spans import Span
from gradleak.models.adapter import Part
from gradleak.models.target import TargetModel

# How far from the identity the test below may be, relative to it.
MISFIT = 0.05

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class Explained:
    """A sentence's label, and the share of the update's mean that is its own gradient (1/B where it occurs once)."""

    label: int | None
    share: float
    misfit: float
    gradient: Tensors


def sentence_gradient(model: TargetModel, tokens: list[int], label: int | None, names: Collection[str]) -> Tensors:
    """The gradient of one sentence's own loss, of some parameters."""
    batch = model.pad([tokens])
    targets = batch.ids if label is None else torch.tensor([label], device=model.device)
    loss = model.loss(targets, ids=batch.ids, mask=batch.mask)
    parameters = model.parameters()
    found = torch.autograd.grad(loss, [parameters[name] for name in names], allow_unused=True)
    return {name: g.double() for name, g in zip(names, found, strict=True) if g is not None}


def explain(
    model: TargetModel, update: Tensors, span: Span, part: Part, tokens: list[int], places: list[int] | None = None
) -> Explained | None:
    """Find label and share of a sentence by one matrix of the update, or None if no label fits.

    With G the update's matrix, X the sentence's inputs to it and D what came back to them, G is the share times DX
    plus products of other tokens. If all of them are independent, X times the inverse of G times D is the identity
    over the share, and for no other D is it a positive multiple of the identity. Positions whose state other
    sentences have too must be left out: `places` are those to look at. Of one place any positive number is a multiple
    of the identity; then the one label that makes it a share is told, and none if several do.
    """
    carrier = part.carrier(update)
    if carrier is None:
        return None
    (states,) = _states(model, part, tokens)
    states = states.double() if carrier.map is None else states.double() @ carrier.map.double().T
    matrix = carrier.matrix.double()
    # The pseudo-inverse within the span: the span is known, so what lies behind it is noise and is left out.
    inverse = torch.linalg.pinv(matrix @ span.basis.T, rtol=0.0)
    classes = range(model.num_labels) if model.task == "classification" else [None]
    fits: list[Explained] = []
    for label in classes:
        gradient = sentence_gradient(model, tokens, label, list(update))
        own = part.carrier(gradient)
        if own is None or own.name != carrier.name:
            continue
        signals = own.matrix @ torch.linalg.pinv(states)
        product = (states @ span.basis.T) @ inverse @ signals
        product = product if places is None else product[places][:, places]
        scale = float(product.diagonal().mean())
        if scale <= 0:
            continue
        eye = torch.eye(len(product), dtype=product.dtype, device=product.device)
        misfit = float((product / scale - eye).norm() / len(product) ** 0.5)
        if misfit < MISFIT:
            fits.append(Explained(label, 1 / scale, misfit, gradient))
    if places is not None and len(places) == 1:
        fits = [each for each in fits if each.share <= 1 + MISFIT]
        return fits[0] if len(fits) == 1 else None
    return min(fits, key=lambda each: each.misfit, default=None)


def peeled(update: Tensors, explained: Explained) -> dict[str, Tensor]:
    """The update without the sentence."""
    return {
        name: tensor - explained.share * explained.gradient[name] if name in explained.gradient else tensor
        for name, tensor in update.items()
    }


def _states(model: TargetModel, part: Part, tokens: list[int]) -> list[Tensor]:
    batch = model.pad([tokens])
    with torch.no_grad():
        return [seen[0] for seen in Probe(model, [part])(input_ids=batch.ids, mask=batch.mask.long())]
