"""Exact recovery: linear algebra instead of guessing, and a proof with every sentence."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

from gradleak.attacks.base import Attack, Reconstruction, Sentence
from gradleak.attacks.exact.decoders import recover_decoder
from gradleak.attacks.exact.encoders import recover_encoder
from gradleak.attacks.exact.recovery import Outcome, Recovered
from gradleak.attacks.reasons import told
from gradleak.core.budget import Budget
from gradleak.core.peak import peak_memory
from gradleak.core.progress import Progress
from gradleak.models.text import TextModel
from gradleak.updates.gradient import as_gradient
from gradleak.updates.update import Update


class Exact(Attack):
    """The span of a layer's inputs is in its gradient; sentences are searched that lie in it whole."""

    name = "exact"
    summary = "linear algebra: sentences whose states lie in the gradients' span, each with a certificate"

    def run(
        self,
        updates: Sequence[Update],
        model: TextModel,
        *,
        budget: Budget,
        progress: Progress,
        seeds: Sequence[int],
    ) -> list[Reconstruction]:
        found = []
        progress.begin(self.name, len(updates), "updates")
        for number, (update, seed) in enumerate(zip(updates, seeds, strict=True)):
            started = time.monotonic()
            own = budget.part(1 / (len(updates) - number))  # a hard update must not take the others' time
            with peak_memory(model.device) as memory:
                outcome = recover(as_gradient(update), model, seed, own, show_in(progress, number))
            progress.advance(number + 1)
            found.append(
                as_reconstruction(outcome, model).model_copy(
                    update={
                        "seconds": time.monotonic() - started,
                        "peak_memory_mb": memory.megabytes,
                        "status": "completed" if outcome.complete else own.reason,
                    }
                )
            )
        progress.end()
        return found


def show_in(progress: Progress, done: int) -> Callable[[str], None]:
    """A function that shows a text in the progress of work of which so much is done."""
    return lambda text: progress.advance(done, text=text)


def recover(gradient: Update, model: TextModel, seed: int, budget: Budget, show: Callable[[str], None]) -> Outcome:
    """Everything that can be proved about one gradient."""
    if model.adapter.family.kind == "decoder":
        return recover_decoder(model, gradient, budget, show)
    return recover_encoder(model, gradient, torch.Generator().manual_seed(seed), budget, show)


def as_reconstruction(outcome: Outcome, model: TextModel) -> Reconstruction:
    """The outcome in the form that all attacks share."""
    labels = [sentence.label for sentence in outcome.sentences]
    known = [label for label in labels if label is not None]
    names = model.tokenizer.convert_ids_to_tokens
    content = set(model.content(list(outcome.bag)))
    found = ["lengths"] + (["labels"] if known and len(known) == len(labels) else [])
    return Reconstruction(
        sentences=[as_sentence(sentence, model) for sentence in outcome.sentences],
        labels=known if len(known) == len(labels) and known else None,
        lengths=[len(sentence.tokens) for sentence in outcome.sentences] or None,
        found=found if outcome.sentences else [],
        bag={str(names(token)): round(score, 4) for token, score in outcome.bag.items() if token in content},
        **told(outcome.reasons),
    )


def as_sentence(recovered: Recovered, model: TextModel) -> Sentence:
    """One sentence with its certificate; it counts as proved only if it is whole."""
    tokens = model.content(recovered.tokens)
    certificate = recovered.certificate
    return Sentence(
        text=model.decode(tokens),
        tokens=tokens,
        confidence=1.0 if certificate.holds else 0.5,
        certified=certificate.holds and recovered.whole,
        stage=Exact.name,
        energy=certificate.energy,
        threshold=certificate.threshold,
    )
