"""Exact recovery from a decoder's weights after several local steps of SGD: the spans of inputs that drifted.

Every step moves the weights, and with them what layers see. So the update is a sum of products of inputs that are
nearly, not exactly, the same from step to step: its spectrum falls without a gap, and inputs computed at the weights
before lie off its span by as much as they drifted. Three things put that right:

- The server knows the weights before and after. At their mean over the steps the drift cancels to first order.
- What is left of the drift is in directions of their own, smaller the higher their order. All that stand above a
  millionth, or above rounding, are taken as span.
- Limits are what wrong states do not fall short of (`spans/chance.py`), as rounding does not say what right ones do.

Nothing of that is a proof: sentences are accepted with a confidence, and no certificate.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from gradleak.attacks.evidence.departures import hiding_defenses
from gradleak.attacks.exact.decoders import positions_of
from gradleak.attacks.exact.endings import endings
from gradleak.attacks.exact.growing import Growth, Prefix, Spans
from gradleak.attacks.exact.places import made_up_states
from gradleak.attacks.exact.recovery import Outcome, Recovered
from gradleak.attacks.reasons import Reason
from gradleak.attacks.spans.candidates import first_inputs
from gradleak.attacks.spans.certify import (
    Certificate,
    Place,
    attention_parts,
    joint_span,
    mixed_places,
    shows_every_token,
)
from gradleak.attacks.spans.chance import reach
from gradleak.attacks.spans.probe import Probe
from gradleak.attacks.spans.spans import Span
from gradleak.core.budget import Budget
from gradleak.models.adapter import Part
from gradleak.models.text import TextModel
from gradleak.updates.gradient import Undone
from gradleak.updates.optimisers import gradient_weights
from gradleak.updates.update import Update

# Places that judge a prefix, and the share of wrong states that may pass each.
PLACES, PASSING = 4, 1e-3
# The same for tokens alone at the first layer: the wrong ones among them are found out by what follows.
PASSING_TOKENS = 1e-3
# Tokens by which the first layer's limit is found.
SOME_TOKENS = 2048
# All sentences are found if their states leave no more than this of the gradient.
ALL = 0.03
# How sure a sentence is whose states all fit, but which is not proved.
CONFIDENCE = 0.9


def drifts(undone: Undone, model: TextModel) -> bool:
    """Whether an update is one of several plain steps of SGD by one client, whose drift can be followed."""
    manifest = undone.gradient.manifest
    steps = undone.gradient.local_steps
    several = undone.kind == "mean gradient" and steps > 1 and manifest.clients == 1
    hidden = bool(hiding_defenses(manifest.defenses)) or manifest.client.mode == "train"
    return several and not hidden and model.goal.autoregressive and model.adapter.family.kind == "decoder"


def recover_drifted(model: TextModel, undone: Undone, budget: Budget, show: Callable[[str], None]) -> Outcome:
    """All sentences of such an update that can be grown, without certificates."""
    update = undone.gradient
    halfway = at_mean_weights(model, update)
    inputs = _with_reach(joint_span(update.tensors, attention_parts(model, 0), wide=True), _some_inputs(halfway))
    found = _places(halfway, update)
    if inputs is None or not found:
        return Outcome()
    positions = positions_of(model, update)
    bag = Growth(halfway, Spans(inputs, found), positions).candidates(positions.start)
    if not len(bag):
        return Outcome()
    seen = made_up_states(halfway, [place.part for place in found], bag)
    within = [_with_reach(place.span, own, PASSING) for place, own in zip(found, seen, strict=True)]
    judges = [Place(place.part, span) for place, span in zip(found, within, strict=True) if span is not None]
    growth = Growth(halfway, Spans(inputs, judges), positions)
    grown = growth.run(budget, show)
    outcome = Outcome(bag=dict.fromkeys(growth.bag, 1.0))
    if growth.overflow:
        outcome.reasons.append(Reason(kind="prefixes-overflow"))
        return outcome
    left = unexplained(halfway, update.tensors, judges[0].part, grown)
    outcome.complete = bool(grown) and left <= ALL and not budget.over
    last = model.adapter.parts[-1]["ffn_out"]
    shown = outcome.complete and last.weight_name in update.tensors
    ends = endings(halfway, last.of(update.tensors[last.weight_name]), grown) if shown else None
    for number, prefix in enumerate(grown):
        own = [*prefix.tokens, *([] if ends is None else [ends[number].token])]
        whole = ends is not None and ends[number].clear
        unproved = _unproved(halfway, judges, prefix)
        outcome.sentences.append(Recovered(own, unproved, whole=whole, confidence=CONFIDENCE))
    if grown and ends is None:
        outcome.reasons.append(Reason(kind="last-missing" if outcome.complete else "last-hidden"))
    return outcome


def at_mean_weights(model: TextModel, gradient: Update) -> TextModel:
    """The model with the mean of the weights at which gradients were computed, as if all had moved them alike."""
    rule = gradient.manifest.client
    rates = rule.rates(gradient.sentences_per_client)
    weights = gradient_weights(rule, rates)
    moved = [sum(weights[:step]) for step in range(len(rates))]  # before each step, in units of the gradient
    mean = sum(way * weight for way, weight in zip(moved, weights, strict=True)) / sum(weights)
    halfway = model.copied()
    parameters = halfway.parameters()
    with torch.no_grad():
        for name, tensor in gradient.tensors.items():
            parameters[name].sub_(mean * tensor.to(parameters[name]))
    return halfway


def _places(model: TextModel, update: Update) -> list[Place]:
    layers = [layer for layer in range(len(model.adapter.parts)) if shows_every_token(model, layer)]
    found: list[Place] = []
    for _, parts in mixed_places(model, layers):
        held = [part for part in parts if part.carrier(update.tensors) is not None]
        span = joint_span(update.tensors, held, wide=True) if held else None
        found += [] if span is None else [Place(held[0], span)]
        if len(found) == PLACES:
            break
    return found


def _some_inputs(model: TextModel) -> Tensor:
    """Means of what the first layer sees of two tokens: like an input, but next to never in the span of the batch."""
    draw = torch.Generator().manual_seed(0)
    tokens = torch.randint(model.vocabulary_size, (2 * SOME_TOKENS,), generator=draw).to(model.device)
    return first_inputs(model, tokens, 1)[:, 0].view(2, SOME_TOKENS, -1).mean(dim=0)


def _with_reach(span: Span | None, wrong: Tensor, rate: float = PASSING_TOKENS) -> Span | None:
    return None if span is None else dataclasses.replace(span, reach=reach(span, wrong, rate))


def unexplained(model: TextModel, tensors: Mapping[str, Tensor], part: Part, grown: Sequence[Prefix]) -> float:
    """What the states of these prefixes leave of a matrix's gradient, against its size."""
    carrier = part.carrier(tensors)
    if carrier is None or not grown:
        return 1.0
    states = torch.cat([_seen(model, [part], prefix)[0] for prefix in grown]).double()
    states = states if carrier.map is None else states @ carrier.map.double().T
    basis = torch.linalg.qr(states.T).Q
    matrix = carrier.matrix.double()
    return float((matrix - (matrix @ basis) @ basis.T).norm() / matrix.norm())


def _unproved(model: TextModel, judges: Sequence[Place], prefix: Prefix) -> Certificate:
    """How far a sentence's states are from the spans, and how far they may be."""
    pairs = list(zip(judges, _seen(model, [place.part for place in judges], prefix), strict=True))
    energy = sum(float(place.span.distances(states).square().mean()) for place, states in pairs)
    threshold = sum(float(place.span.limits(states).square().mean()) for place, states in pairs)
    return Certificate(energy, threshold, strict=False)


def _seen(model: TextModel, parts: Sequence[Part], prefix: Prefix) -> list[Tensor]:
    """What the parts see of a prefix, (tokens, width) each."""
    ids = torch.tensor([prefix.tokens], device=model.device)
    where = torch.arange(prefix.start, prefix.start + ids.shape[1], device=ids.device)[None]
    with torch.no_grad():
        return [seen[0] for seen in Probe(model, parts)(input_ids=ids, mask=torch.ones_like(ids), position_ids=where)]
