"""What is left of an update once some of its sentences are known."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence

from gradleak.attacks.exact.contribution import sentence_gradient
from gradleak.attacks.exact.recovery import Outcome, Recovered
from gradleak.models.text import TextModel
from gradleak.updates.client_rule import ClientRule
from gradleak.updates.manifest import Known
from gradleak.updates.update import Update

# How far from a whole number a share times the batch size may be, relative to it.
ROUGHLY = 0.2


def remaining(gradient: Update, outcome: Outcome, model: TextModel) -> Update | None:
    """The gradient without the recovered sentences, and what is still known then; None if that cannot be computed.

    The whole gradient is returned if nothing was recovered. What is left is scaled to the mean over its sentences.
    """
    if not outcome.sentences:
        return gradient if _size(gradient.known, []) else None
    if any(sentence.share is None for sentence in outcome.sentences):
        return None
    size = _size(gradient.known, outcome.sentences)
    if size is None or any(not _is_times(sentence, size) for sentence in outcome.sentences):
        return None
    if not model.goal.label_choices(model):  # what a sentence adds is not known from its label alone
        return None
    left = size - sum(_times(sentence, size) for sentence in outcome.sentences)
    if left < 1:
        return None
    tensors = dict(gradient.tensors)
    for sentence in outcome.sentences:
        own = sentence_gradient(model, sentence.tokens, sentence.label, list(tensors))
        for name, part in own.items():
            tensors[name] = tensors[name] - _times(sentence, size) / size * part.to(tensors[name])
    tensors = {name: tensor * (size / left) for name, tensor in tensors.items()}
    known = _known(gradient.known, outcome.sentences, size, left)
    manifest = gradient.manifest.model_copy(update={"known": known, "client": ClientRule()})
    return dataclasses.replace(gradient, tensors=tensors, manifest=manifest)


def _size(known: Known, sentences: Sequence[Recovered]) -> int | None:
    """The batch size: known, or what the shares of recovered sentences say."""
    shares = [sentence.share for sentence in sentences if sentence.share]
    return known.size or (round(1 / min(shares)) if shares else None)


def _times(sentence: Recovered, size: int) -> int:
    """How often a sentence occurs in the batch."""
    return max(1, round(size * (sentence.share or 0.0)))


def _is_times(sentence: Recovered, size: int) -> bool:
    """Whether the share is a whole number of occurrences; not so if the update is another multiple of the mean."""
    times = _times(sentence, size)
    return abs(size * (sentence.share or 0.0) - times) <= ROUGHLY * times


def _known(known: Known, sentences: Sequence[Recovered], size: int, left: int) -> Known:
    """What is known of the sentences that are left."""
    lengths = Counter(known.lengths or ())
    labels = Counter(known.labels or ())
    for sentence in sentences:
        lengths[len(sentence.tokens)] -= _times(sentence, size)
        if sentence.label is not None:
            labels[sentence.label] -= _times(sentence, size)
    lengths_left, labels_left = (tuple(counter.elements()) for counter in (lengths, labels))
    return Known(
        batch_size=left,
        # Which of the sentences left has which label is not known any more; where that matters they are found anew.
        labels=labels_left if len(labels_left) == left and len(set(labels_left)) == 1 else None,
        lengths=lengths_left if len(lengths_left) == left else None,
    )
