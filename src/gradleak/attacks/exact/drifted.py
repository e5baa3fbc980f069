"""Exact recovery from a decoder's weights after local steps of SGD: the spans of inputs that drifted.

Every step moves the weights, and with them what layers see. So the update is a sum of products of inputs that are
nearly, not exactly, the same from step to step: its spectrum falls without a gap, and inputs computed at the weights
before lie off its span by as much as they drifted. Three things put that right:

- The server knows the weights before and after. At their mean over the steps the drift cancels to first order.
- What is left of the drift is in directions of their own, smaller the higher their order. All that stand above a
  millionth, or above what rounding at every step leaves, are taken as span.
- No single layer tells right states from wrong ones where rounding covers the weakest: many together do (`joint.py`).

A single step has no drift, but the same rounding, and is read in the same way.

Nothing of that is a proof: sentences are accepted with a confidence, and no certificate.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.attacks.evidence.departures import hiding_defenses
from gradleak.attacks.exact.decoders import positions_of
from gradleak.attacks.exact.endings import endings
from gradleak.attacks.exact.growing import CHUNK, Prefix
from gradleak.attacks.exact.joint import JointGrowth, Judge
from gradleak.attacks.exact.limits import coherence, rounding_edge
from gradleak.attacks.exact.recovery import Outcome, Recovered
from gradleak.attacks.reasons import Reason
from gradleak.attacks.spans.candidates import first_inputs
from gradleak.attacks.spans.certify import Rounding, attention_parts, carriers, joint_span, mixed_places, mixing_parts
from gradleak.attacks.spans.chance import reach
from gradleak.attacks.spans.probe import Probe
from gradleak.attacks.spans.spans import SPECTRUM_NOISE, Span
from gradleak.core.budget import Budget
from gradleak.models.adapter import Carrier, Part
from gradleak.models.text import TextModel
from gradleak.updates.gradient import Undone
from gradleak.updates.optimisers import gradient_weights
from gradleak.updates.update import Update

# The share of wrong tokens that may pass at the first layer: they are found out by what follows.
PASSING_TOKENS = 1e-3
# Tokens by which the first layer's limit is found.
SOME_TOKENS = 2048
# The share of the layers that judge a prefix, from the first.
DEPTH = 2 / 3
# All sentences are found if their states leave no more than this of the gradient.
ALL = 0.03
# The share of sentences given that were right to the last token after steps in fp32 (docs/exact.md).
CONFIDENCE = 0.7


def drifts(undone: Undone, model: TextModel) -> bool:
    """Whether an update is of weights that one client moved by plain SGD, so that drift and rounding are known."""
    manifest = undone.gradient.manifest
    plain = undone.kind == "mean gradient" and manifest.clients == 1
    hidden = bool(hiding_defenses(manifest.defenses)) or manifest.client.mode == "train"
    return plain and not hidden and model.goal.autoregressive and model.adapter.family.kind == "decoder"


def recover_drifted(model: TextModel, undone: Undone, budget: Budget, show: Callable[[str], None]) -> Outcome:
    """All sentences of such an update that can be grown, without certificates."""
    update = undone.gradient
    halfway = at_mean_weights(model, update)
    rounding = Rounding(lambda carrier: rounding_edge(update, model, carrier), coherence(update))
    first = attention_parts(model, 0)
    inputs = joint_span(update.tensors, first, rounding=rounding)
    judges = _judges(halfway, update, rounding)
    if inputs is None or not judges:
        return Outcome()
    positions = positions_of(model, update)
    inputs = dataclasses.replace(inputs, reach=reach(inputs, _some_inputs(halfway), PASSING_TOKENS))
    if any(rounding.edge(c) > SPECTRUM_NOISE * float(c.matrix.norm()) for c in carriers(update.tensors, first)):
        inputs = dataclasses.replace(inputs, reach=_farther(halfway, inputs, positions.start))
    growth = JointGrowth(halfway, inputs, judges, positions, update.known.size)
    grown = growth.run(budget, show) if len(growth.candidates(growth.positions.start)) else []
    outcome = Outcome(bag=dict.fromkeys(growth.bag, 1.0))
    if growth.overflow:
        outcome.reasons.append(Reason(kind="prefixes-overflow"))
        return outcome
    widest = max(judges[:2], key=lambda judge: judge.basis.shape[1])  # many sentences fill the others
    evidence = Evidence(halfway, update, widest.part, rounding)
    grown = trimmed(evidence, grown, update.known.size)
    outcome.complete = bool(grown) and evidence.left(grown) <= ALL and not budget.over
    last = model.adapter.parts[-1]["ffn_out"]
    shown = bool(grown) and last.weight_name in update.tensors
    ends = endings(halfway, last.of(update.tensors[last.weight_name]), grown) if shown else None
    for number, prefix in enumerate(grown):
        ending = None if ends is None or not (outcome.complete or ends[number].clear) else ends[number]
        own = [*prefix.tokens, *([] if ending is None else [ending.token])]
        whole = ending is not None and ending.clear
        outcome.sentences.append(Recovered(own, growth.unproved(prefix), whole=whole, confidence=CONFIDENCE))
    if grown and not outcome.complete:
        outcome.reasons.append(Reason(kind="last-hidden"))
    elif grown and ends is None:
        outcome.reasons.append(Reason(kind="last-missing"))
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


def _judges(model: TextModel, update: Update, rounding: Rounding) -> list[Judge]:
    """The feed-forward matrices of the first layers; of layers that sent none of them, what the attention sees."""
    found: list[Judge] = []
    for layer in range(math.ceil(DEPTH * len(model.adapter.parts))):
        mixed = [parts for _, parts in mixed_places(model, [layer])]
        forward = [mixing_parts(model, layer)] if mixing_parts(model, layer) in mixed else []
        if forward and "ffn_out" in model.adapter.parts[layer]:
            forward.append([model.adapter.parts[layer]["ffn_out"]])
        sent = [[part for part in parts if part.carrier(update.tensors) is not None] for parts in forward]
        if not any(sent):
            sent = [[part for part in parts if part.carrier(update.tensors) is not None] for parts in mixed]
        for parts in filter(None, sent):
            span = joint_span(update.tensors, parts, rounding=rounding)
            found += [] if span is None else [Judge.of(parts[0], span)]
    return found


def _some_inputs(model: TextModel) -> Tensor:
    """Means of what the first layer sees of two tokens: like an input, but next to never in the span of the batch."""
    draw = torch.Generator().manual_seed(0)
    tokens = torch.randint(model.vocabulary_size, (2 * SOME_TOKENS,), generator=draw).to(model.device)
    return first_inputs(model, tokens, 1)[:, 0].view(2, SOME_TOKENS, -1).mean(dim=0)


def _farther(model: TextModel, span: Span, position: int) -> float:
    """The reach that lets half as many tokens more pass as the span has dimensions: rounding moves some far off."""
    tokens = torch.arange(model.vocabulary_size, device=model.device)
    inputs = (first_inputs(model, some, 1, position)[:, 0] for some in tokens.split(CHUNK))
    distances = torch.cat([span.distances(own) for own in inputs])
    return max(span.reach or 0.0, float(distances.kthvalue(min(3 * span.rank // 2, len(distances))).values))


@dataclass(frozen=True)
class Evidence:
    """A matrix's gradient, which the states of all sentences must explain but for drift and rounding."""

    model: TextModel
    update: Update
    part: Part
    rounding: Rounding

    def left(self, grown: Sequence[Prefix]) -> float:
        """What the states of these prefixes leave of it beyond rounding, against its size."""
        carrier = self.part.carrier(self.update.tensors)
        if carrier is None or not grown:
            return 1.0
        rows, width = carrier.matrix.shape
        noise = self.rounding.edge(carrier) / (rows**0.5 + width**0.5)
        beyond = self.squares_left(carrier, [_seen(self.model, self.part, prefix) for prefix in grown])
        beyond -= noise**2 * rows * max(0, width - sum(len(prefix.tokens) for prefix in grown))
        return float(max(0.0, beyond) ** 0.5 / carrier.matrix.double().norm())

    @staticmethod
    def squares_left(carrier: Carrier, states: Sequence[Tensor]) -> float:
        """The sum of squares that the span of some states leaves of a matrix."""
        seen = torch.cat(list(states)).double()
        basis = torch.linalg.qr((seen if carrier.map is None else seen @ carrier.map.double().T).T).Q
        matrix = carrier.matrix.double()
        return float(matrix.square().sum() - (matrix @ basis).square().sum())


def trimmed(evidence: Evidence, grown: list[Prefix], size: int | None) -> list[Prefix]:
    """No more sentences than there are: those that explain least beside the others are echoes of them.

    Behind copies of itself a token looks like one behind a copy fewer, so `2000` is also read as `20000`.
    """
    carrier = evidence.part.carrier(evidence.update.tensors)
    if size is None or carrier is None or len(grown) <= size:
        return grown
    kept = [(prefix, _seen(evidence.model, evidence.part, prefix)) for prefix in grown]
    while len(kept) > size:
        others = [[states for _, states in kept[:n] + kept[n + 1 :]] for n in range(len(kept))]
        without = [evidence.squares_left(carrier, states) for states in others]
        kept.pop(without.index(min(without)))
    return [prefix for prefix, _ in kept]


def _seen(model: TextModel, part: Part, prefix: Prefix) -> Tensor:
    """What a part sees of a prefix, (tokens, width)."""
    ids = torch.tensor([prefix.tokens], device=model.device)
    where = torch.arange(prefix.start, prefix.start + ids.shape[1], device=ids.device)[None]
    with torch.no_grad():
        return Probe(model, [part])(input_ids=ids, mask=torch.ones_like(ids), position_ids=where)[0][0]
