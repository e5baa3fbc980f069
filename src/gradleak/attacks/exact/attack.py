"""Exact recovery: linear algebra instead of guessing, and a proof with every sentence."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import torch

from gradleak.attacks.base import Attack, AttackContext, Reconstruction, Sentence
from gradleak.attacks.evidence.departures import with_causes
from gradleak.attacks.exact.decoders import recover_decoder
from gradleak.attacks.exact.drifted import drifts, recover_drifted
from gradleak.attacks.exact.dropout import drops_inputs, recover_dropped
from gradleak.attacks.exact.encoders import recover_encoder
from gradleak.attacks.exact.estimated import can_estimate, recover_estimated
from gradleak.attacks.exact.growing import CHUNK, SIDE_BY_SIDE
from gradleak.attacks.exact.pairs import recover_pairs
from gradleak.attacks.exact.recovery import Outcome, Recovered
from gradleak.attacks.exact.rows import texts_of
from gradleak.attacks.exact.unplaced import search_for
from gradleak.attacks.reasons import Reason, reason_fields
from gradleak.core.budget import Budget
from gradleak.core.progress import Progress
from gradleak.models.text import TextModel
from gradleak.updates.client_rule import ClientRule
from gradleak.updates.gradient import Undone, undo, with_rounding
from gradleak.updates.update import Update

# Prefixes whose candidates are looked at together.
MOST_AT_ONCE = CHUNK // SIDE_BY_SIDE


class Exact(Attack):
    """The span of a layer's inputs is in its gradient; sentences that lie in it entirely are searched for."""

    name = "exact"
    summary = "linear algebra: sentences whose states lie in the gradients' span, each with a certificate"
    at_once = 1

    def memory_needed(self, update: Update, model: TextModel) -> int:
        """The gradients of a layer in float64, scaled, stacked and decomposed, and candidates side by side.

        After several local steps there is a second model, at other weights.
        """
        parameters = model.parameters()
        names = {name for part in model.adapter.parts[0].values() for name in part.tensor_names} & set(update.tensors)
        spans = 3 * 8 * sum(parameters[name].numel() for name in names)
        spans += 4 * sum(each.numel() for each in parameters.values()) if update.local_steps > 1 else 0
        if model.adapter.family.kind != "decoder":
            return spans
        heads = int(getattr(model.module.config, "num_attention_heads", 1))
        prefixes = max(1, min(update.known.size or MOST_AT_ONCE, MOST_AT_ONCE))
        return spans + 4 * prefixes * SIDE_BY_SIDE * (3 * heads * SIDE_BY_SIDE + 8 * model.width)

    def run(self, updates: Sequence[Update], model: TextModel, context: AttackContext) -> list[Reconstruction]:
        (update,), (seed,), progress = updates, context.seeds, context.progress
        progress.begin(self.name, context.total, "updates")
        outcome = recover(undo(update, model), model, seed, context.budget, show_in(progress, context.before))
        progress.advance(context.before + 1)
        progress.end()
        return [as_reconstruction(outcome, model, update.manifest.client, context.budget)]


def show_in(progress: Progress, done: int) -> Callable[[str], None]:
    """A function that shows a text beside the progress of work of which so much is done."""
    return lambda text: progress.advance(done, text=text)


def recover(undone: Undone, model: TextModel, seed: int, budget: Budget, show: Callable[[str], None]) -> Outcome:
    """Everything that can be proved about a gradient; where it is an estimate, also what is as good as proved."""
    gradient, generator = undone.gradient, torch.Generator().manual_seed(seed)
    if model.adapter.sides:
        outcome = recover_pairs(model, gradient, generator, budget, show)
    elif model.adapter.family.kind == "decoder":
        outcome = recover_decoder(model, gradient, budget, show)
        if not outcome.complete and drifts(undone, model) and not budget.over:
            drifted = recover_drifted(model, undone, budget, show)
            outcome = drifted if drifted.sentences else outcome
    elif drops_inputs(model, gradient):
        outcome = recover_dropped(model, gradient, generator, budget, show)
    elif can_estimate(model, undone):
        outcome = recover_estimated(model, undone, generator, budget, show)
    else:
        outcome = recover_encoder(model, gradient, generator, budget, show, search_for(model))
        if not outcome.complete and not budget.over:
            rounded = with_rounding(undone, model)
            estimated = can_estimate(model, rounded) and recover_estimated(model, rounded, generator, budget, show)
            outcome = estimated if estimated and len(estimated.sentences) > len(outcome.sentences) else outcome
    outcome.reasons = with_causes(outcome.reasons, gradient)
    return outcome


def as_reconstruction(outcome: Outcome, model: TextModel, rule: ClientRule, budget: Budget) -> Reconstruction:
    """The outcome as a reconstruction; rows that texts were packed into are taken apart."""
    first = [sentence for sentence in outcome.sentences if sentence.side != "target"]  # it is the label of a source
    told = model.goal.labelled and not model.goal.paired
    labels = [sentence.label if told else None for sentence in first]
    known = [label for label in labels if label is not None]
    names = model.tokenizer.convert_ids_to_tokens
    content = set(model.content(list(outcome.bag)))
    found = ["lengths"] + (["labels"] if known and len(known) == len(labels) else [])
    alone = outcome.complete and len(outcome.sentences) == 1  # then it is the first of all rows
    sentences = [
        as_sentence(dataclasses.replace(row, tokens=tokens, whole=row.whole and whole), model)
        for row in outcome.sentences
        for tokens, whole in texts_of(row.tokens, model, rule, first=alone)
    ]
    lost = sum(sentence.lost for sentence in sentences)
    unknown = [Reason(kind="tokens-unknown", numbers={"tokens": lost})] if lost else []
    return Reconstruction(
        sentences=sentences,
        labels=known if len(known) == len(labels) and known else None,
        lengths=[len(sentence.tokens) for sentence in first] or None,
        found=found if first else [],
        bag={str(names(token)): round(score, 4) for token, score in outcome.bag.items() if token in content},
        **reason_fields([*outcome.reasons, *unknown]),
        status="completed" if outcome.complete else budget.reason,
    )


def as_sentence(recovered: Recovered, model: TextModel) -> Sentence:
    """A sentence with its certificate; it counts as proved only if it is whole and says something."""
    written = recovered.written or recovered.tokens
    tokens = model.content(written)
    certificate = recovered.certificate
    return Sentence(
        text=model.decode(tokens),
        tokens=tokens,
        confidence=1.0 if certificate.holds else recovered.confidence,
        certified=certificate.holds and recovered.whole and bool(tokens),
        stage=Exact.name,
        side=recovered.side,
        example=recovered.example,
        energy=certificate.energy,
        threshold=certificate.threshold,
        lost=model.lost(written),
    )
