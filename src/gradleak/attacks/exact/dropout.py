"""Exact recovery from an encoder that was trained with dropout: inputs under their masks, then who saw whom.

What the first layer saw of every token is found with its mask (`spans/masked.py`), once for each sentence that had it
there. Once all are found, each has output gradients of its own, and these say which of them stood in one sentence
(`grouping.py`).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from gradleak.attacks.evidence.lengths import ROW_NOISE
from gradleak.attacks.exact.grouping import Grouping
from gradleak.attacks.exact.limits import not_in_update, rank_hidden
from gradleak.attacks.exact.recovery import Outcome, Recovered
from gradleak.attacks.reasons import Reason
from gradleak.attacks.spans.certify import attention_parts, input_span
from gradleak.attacks.spans.masked import masked_inputs
from gradleak.core.budget import Budget
from gradleak.models.text import TextModel
from gradleak.updates.update import Update

# With more of the dimensions taken than this, masks are not found any more: combinations agree with any token.
MOST_TAKEN = 1 / 3


def drops_inputs(model: TextModel, update: Update) -> bool:
    """Whether dropout hid a part of what the first layer saw, and the update shows which tokens it read."""
    adapter = model.adapter
    dropped = any(isinstance(module, nn.Dropout) and module.p > 0 for module in model.module.modules())
    if update.manifest.client.mode != "train" or not dropped or adapter.positions is None:
        return False
    tables = [adapter.parameter_of(adapter.token_embedding), adapter.parameter_of(adapter.positions)]
    tied = model.goal.predicts_tokens and adapter.tied
    return adapter.embedding_projection is None and not tied and all(name in update.tensors for name in tables)


def recover_dropped(
    model: TextModel, update: Update, generator: torch.Generator, budget: Budget, show: Callable[[str], None]
) -> Outcome:
    """The sentences of an update that was made with dropout, and proofs where every input was found."""
    queries = model.adapter.parts[0]["query"]
    missing = not_in_update(update, [[queries]])
    if missing:
        return Outcome(reasons=[missing])
    span = input_span(model, update.tensors)
    if span is None or span.map is not None:
        return Outcome(reasons=[rank_hidden(update, model, attention_parts(model, 0))])
    adapter = model.adapter
    assert adapter.positions is not None
    tokens, used = (
        _moved_rows(update.tensors[adapter.parameter_of(table)])
        for table in (adapter.token_embedding, adapter.positions)
    )
    length = int(used.max()) + 1 - adapter.family.first_position
    few = span.rank <= MOST_TAKEN * span.width
    inputs = masked_inputs(model, span, tokens, length, generator, budget) if few else []
    outcome = Outcome(bag={each.token: 1.0 for each in inputs})
    if len(inputs) < span.rank:
        numbers = {"told": len(inputs), "rank": span.rank}
        outcome.reasons.append(Reason(kind="dimensions-left", numbers=numbers))
    if not inputs:
        return outcome
    carrier = queries.carrier(update.tensors)
    assert carrier is not None
    grouping = Grouping(model, inputs, carrier.matrix.double())
    for chosen, energy in grouping.sentences(generator, budget):
        own = [inputs[number].token for number in chosen]
        certificate = grouping.certificate(len(own), energy, complete=len(inputs) == span.rank)
        outcome.sentences.append(Recovered(own, certificate, confidence=max(0.0, 1.0 - energy) / 2))
        show(model.decode(own))
    outcome.complete = bool(outcome.sentences) and all(each.certificate.holds for each in outcome.sentences)
    return outcome


def _moved_rows(gradient: Tensor) -> Tensor:
    sizes = gradient.norm(dim=1)
    return (sizes > ROW_NOISE * sizes.max()).nonzero()[:, 0]
