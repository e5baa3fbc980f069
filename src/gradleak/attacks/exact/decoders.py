"""Exact recovery from a decoder's update: grow all sentences, certify them, then find their last tokens or labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from gradleak.attacks.evidence.lengths import ROW_NOISE
from gradleak.attacks.evidence.tokens import tokens_in_span
from gradleak.attacks.exact.contribution import Contribution, Evidence, add_up_to, find_contribution
from gradleak.attacks.exact.endings import Ending, endings
from gradleak.attacks.exact.growing import Growth, Prefix, Spans
from gradleak.attacks.exact.limits import not_in_update, rank_hidden
from gradleak.attacks.exact.places import nearly_full_places, telling
from gradleak.attacks.exact.recovery import Outcome, Recovered
from gradleak.attacks.reasons import Reason
from gradleak.attacks.spans.certify import (
    Certifier,
    Place,
    attention_parts,
    input_span,
    mixed_layer,
    mixed_spans,
)
from gradleak.core.budget import Budget
from gradleak.models.text import TextModel
from gradleak.updates.update import Update

# Two states of a sentence that are nearer than this, as a share of their size, are the same but for rounding.
SAME_STATE = 1e-5


@dataclass
class Grown:
    """All prefixes that cannot be continued, the places they were judged by, and what else is known so far."""

    prefixes: list[Prefix] = field(default_factory=list)
    places: Sequence[Place] = ()
    outcome: Outcome = field(default_factory=Outcome)


def grow(model: TextModel, update: Update, budget: Budget, show: Callable[[str], None]) -> Grown:
    """All sentences that can be grown from the update; `show` gets the longest at each step."""
    first = attention_parts(model, 0)
    _, mixed = mixed_layer(model, update.tensors)
    missing = not_in_update(update, [mixed])
    if missing:
        return Grown(outcome=Outcome(reasons=[missing]))
    inputs, positions = input_span(model, update.tensors), positions_of(model, update)
    places = mixed_spans(model, update.tensors)
    if not places or (inputs is None and not_in_update(update, [first]) is None):
        # What the first layer sees takes fewer dimensions where tokens recur, and shows tokens if not sentences.
        fit = tokens_in_span(model, update, budget=budget)
        if fit is not None:
            places = telling(model, nearly_full_places(model, update.tensors), fit, positions.start)
        if fit is None or not places:
            bag = {} if fit is None else dict.fromkeys(fit.tolist(), 1.0)
            return Grown(outcome=Outcome(bag=bag, reasons=[rank_hidden(update, model, mixed)]))
    learned, rank = model.adapter.positions is not None, places[0].span.rank
    growth = Growth(model, Spans(inputs, places), positions)
    grown = growth.run(budget, show)
    if growth.hurried and len(states_of(grown, learned)) < rank and not budget.over:
        grown = growth.run(budget, show, thorough=True)
    outcome = Outcome(bag=dict.fromkeys(growth.bag, 1.0))
    if growth.overflow:
        outcome.reasons.append(Reason(kind="prefixes-overflow"))
        return Grown(outcome=outcome)
    shared = states_of(grown, learned)
    outcome.complete = len(shared) >= rank and not budget.over
    if not outcome.complete and not budget.over:
        numbers = {"told": len(shared), "rank": rank}
        outcome.reasons.append(Reason(kind="dimensions-left", numbers=numbers))
    return Grown(grown, places, outcome)


def recover_decoder(model: TextModel, update: Update, budget: Budget, show: Callable[[str], None]) -> Outcome:
    """All sentences of the update that can be grown, with certificates, and their last tokens or labels."""
    found = grow(model, update, budget, show)
    grown, outcome = found.prefixes, found.outcome
    if not found.places:
        return outcome
    mixed = found.places[0]
    learned = model.adapter.positions is not None
    shared = states_of(grown, learned)
    if outcome.complete and model.goal.one_per_text and not any(prefix.start for prefix in grown):
        # States can be so alike that the rank does not count them all, and a sentence that is the beginning of
        # another has no states of its own.
        outcome.complete = add_up_to(
            model, update.tensors, mixed.span, mixed.part, [list(prefix.tokens) for prefix in grown]
        )
        outcome.reasons += [] if outcome.complete else [Reason(kind="gradient-left")]
    certifier = Certifier(model, update, found.places)
    last = _last_tokens(model, update, grown) if model.goal.autoregressive and outcome.complete else None
    for number, prefix in enumerate(grown):
        seen = certifier.states(prefix.tokens, prefix.start)
        certificate = certifier.check(prefix.tokens, prefix.start, seen)
        # Without positions and without a first special token, a single token stands for any run of it.
        repeated = len(prefix.tokens) == 1 and not learned and not model.prefix
        if goes_round(prefix.tokens, seen):
            certificate = replace(certificate, strict=False)
        if model.goal.autoregressive:
            ending = last[number] if last is not None else None
            tokens = [*prefix.tokens, *([] if ending is None else [ending.token])]
            whole = ending is not None and ending.clear and not repeated
            outcome.sentences.append(Recovered(tokens, certificate, whole=whole))
        else:
            alone = [n for n, state in enumerate(prefix.states(learned)) if shared[state] == 1]
            own = _contribution(model, update, mixed, prefix, alone)
            label, share = (own.label, own.share) if own is not None else (None, None)
            # A prefix fits the spans as well as its sentence. It is whole if nothing else is left to explain, or if
            # its own gradient is in the update, of which a single token is no test.
            whole = (outcome.complete or (own is not None and own.places > 1)) and not repeated
            outcome.sentences.append(Recovered(list(prefix.tokens), certificate, label, share, whole))
    if model.goal.autoregressive and last is None and grown:
        outcome.reasons.append(Reason(kind="last-missing" if outcome.complete else "last-hidden"))
    return outcome


def goes_round(tokens: Sequence[int], seen: Sequence[Tensor]) -> bool:
    """Whether a sentence comes back to a state that it was in, so that nothing says how often it went round.

    With attention to a window alone, what lies beyond it is forgotten, and a phrase that is said over and over looks
    the same each time. Copies of the first token are no such case: later states tell how many there were.
    """
    first = next((n for n, token in enumerate(tokens) if token != tokens[0]), len(tokens)) - 1
    same = torch.ones(len(tokens) - first, len(tokens) - first, dtype=torch.bool)
    for states in seen:
        own = states[first:].double().cpu()
        same &= torch.cdist(own, own) < SAME_STATE * own.norm(dim=1, keepdim=True)
    return bool(same.triu(diagonal=1).any())


def states_of(grown: list[Prefix], learned: bool) -> Counter[tuple[int, tuple[int, ...]]]:
    """How many tokens have each state: every state adds a dimension to the update."""
    return Counter(state for prefix in grown for state in prefix.states(learned))


def _contribution(
    model: TextModel, update: Update, place: Place, prefix: Prefix, alone: list[int]
) -> Contribution | None:
    """A sentence's label and share, by those of its tokens whose states no other sentence has."""
    names = [name for name in place.part.tensor_names if name in update.tensors]
    kept = {name: update.tensors[name].double() for name in names}
    evidence = Evidence(update.known.size)
    tokens = list(prefix.tokens)
    return find_contribution(model, kept, place.span, place.part, tokens, alone, evidence=evidence) if alone else None


def positions_of(model: TextModel, update: Update) -> range:
    """The positions that tokens may have: those the position table has a gradient for, if it was sent."""
    table = model.adapter.positions
    gradient = update.tensors.get(model.adapter.parameter_of(table)) if table is not None else None
    if gradient is None:
        return range(model.max_length)
    sizes = gradient.norm(dim=1)
    used = (sizes > ROW_NOISE * sizes.max()).nonzero()
    first = model.adapter.family.first_position
    return range(int(used.min()) - first, int(used.max()) + 1 - first)


def _last_tokens(model: TextModel, update: Update, grown: list[Prefix]) -> list[Ending] | None:
    part = model.adapter.parts[-1]["ffn_out"]
    if part.weight_name not in update.tensors:
        return None
    return endings(model, part.of(update.tensors[part.weight_name]), grown)
