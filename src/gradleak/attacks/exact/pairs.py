"""Exact recovery from an encoder-decoder's update: targets first, then sources, then which belong together.

The decoder's first layer sees nothing of the source until its cross-attention, whose queries see each token of the
target mixed with those before it. So targets are grown there as a decoder's sentences are, whatever the sources. The
encoder never sees a target, so sources are found as an encoder's sentences are. What a source adds to the update
depends on its target as on a label: of all targets that were found the right one is the one that explains it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch

from gradleak.attacks.exact.decoders import Grown, grow, states_of
from gradleak.attacks.exact.encoders import recover_encoder
from gradleak.attacks.exact.growing import Prefix
from gradleak.attacks.exact.recovery import Outcome, Recovered
from gradleak.attacks.exact.unplaced import search_for
from gradleak.attacks.spans.certify import Certifier
from gradleak.core.budget import Budget
from gradleak.models.sides import Source, Target
from gradleak.models.tasks import Label
from gradleak.models.text import TextModel
from gradleak.updates.update import Update


def recover_pairs(
    model: TextModel, update: Update, generator: torch.Generator, budget: Budget, show: Callable[[str], None]
) -> Outcome:
    """All sources and targets that can be proved, in this order, and the pairs that can."""
    targets = _targets(model, update, budget, show)
    labels = [tuple(target.tokens) for target in targets.sentences]
    source = Source(model, labels)
    sources = recover_encoder(source, _of_encoder(update, model), generator, budget, show, search_for(source))
    known = dict.fromkeys(each.label for each in sources.sentences if each.label is not None)
    paired: dict[Label | None, int] = {label: number for number, label in enumerate(known)}
    found = [
        *(dataclasses.replace(each, side="source", example=paired.get(each.label)) for each in sources.sentences),
        *(dataclasses.replace(each, example=paired.get(tuple(each.tokens))) for each in targets.sentences),
    ]
    return Outcome(
        found,
        sources.complete and targets.complete,
        {**targets.bag, **sources.bag},
        [*targets.reasons, *sources.reasons],
    )


def _targets(model: TextModel, update: Update, budget: Budget, show: Callable[[str], None]) -> Outcome:
    """What the decoder read, as it was written: without the start token, and with the end that it only predicted."""
    side = Target(model)
    found = grow(side, update, budget, show)
    if not found.places:
        return found.outcome
    certifier = Certifier(side, update, found.places)
    grown, single = _without_echoes(found, learned=side.adapter.positions is not None)
    for prefix in grown:
        written = [*prefix.tokens[1:], *model.suffix[-1:]]
        begun = list(prefix.tokens[: len(side.prefix)]) == side.prefix
        # Every state that the update holds is some prefix's, so these are whole: nothing else was read.
        whole = found.outcome.complete and single and begun and bool(model.suffix)
        certificate = certifier.check(list(prefix.tokens), prefix.start)
        found.outcome.sentences.append(Recovered(written, certificate, whole=whole, side="target"))
    return found.outcome


def _without_echoes(found: Grown, learned: bool) -> tuple[list[Prefix], bool]:
    """The prefixes that were grown, and whether the update has a dimension for each of their states.

    Without learned positions a token after itself can look so much like the token before that both fit. Where there
    are more states than dimensions, such echoes at the ends of prefixes are left out.
    """
    rank = found.places[0].span.rank
    if len(states_of(found.prefixes, learned)) <= rank:
        return found.prefixes, True
    kept = [prefix for prefix in found.prefixes if len(set(prefix.tokens[-2:])) == len(prefix.tokens[-2:])]
    return kept, len(states_of(kept, learned)) <= rank


def _of_encoder(update: Update, model: TextModel) -> Update:
    """The update without the token embedding, whose rows are sums over sources, targets and predictions."""
    table = model.adapter.parameter_of(model.adapter.token_embedding)
    tensors = {name: tensor for name, tensor in update.tensors.items() if name != table}
    return dataclasses.replace(update, tensors=tensors)
