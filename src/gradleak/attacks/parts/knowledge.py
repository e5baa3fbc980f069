"""What an attack knows of a batch before it searches: what the manifest grants, and what the gradient gives away."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from gradleak.attacks.parts.labels import arrangements, label_counts, label_of_one
from gradleak.attacks.parts.lengths import length_guesses, longest_sentence, total_tokens
from gradleak.errors import GradleakError
from gradleak.models.target import TargetModel
from gradleak.update import Update


@dataclass(frozen=True)
class Knowledge:
    """Size, labels and token counts of a batch, and which of them the attack had to find."""

    lengths: list[int]
    labels: list[int] | None
    found: list[str]


def gather(update: Update, model: TargetModel, attack: str, most: int) -> list[Knowledge]:
    """Take what is granted, find the rest: one entry if the gradient tells, else up to `most` guesses, best first."""
    known = update.known
    size = known.batch_size or len(known.lengths or known.labels or ())
    if not size:
        raise GradleakError(f"{attack} needs the batch size and this update does not grant it")
    needs_labels = model.task == "classification"
    found = ["lengths"] if known.lengths is None else []
    found += ["labels"] if needs_labels and known.labels is None else []
    lengths = list(itertools.islice(_lengths(update, model, size), most))
    guesses = []
    for at, row in enumerate(lengths):
        equal = len(set(row)) == 1
        for number, labels in enumerate(itertools.islice(_labels(update, model, size, equal), most)):
            guesses.append((at + number, Knowledge(row, labels if needs_labels else None, found)))
    # Along the diagonals, so that the likeliest of both come first.
    return [guess for _, guess in sorted(guesses, key=lambda entry: entry[0])[:most]]


def _lengths(update: Update, model: TargetModel, size: int) -> Iterator[list[int]]:
    if update.known.lengths is not None:
        return iter([list(update.known.lengths)])
    longest = longest_sentence(update, model)
    total = None if size == 1 and longest else total_tokens(update, model, size)
    return length_guesses(model, size, longest, total)


def _labels(update: Update, model: TargetModel, size: int, equal: bool) -> Iterator[list[int]]:
    """Labels a batch may have; if all lengths are equal it does not matter which sentence has which."""
    if model.task != "classification":
        yield []
        return
    if update.known.labels is not None:
        yield list(update.known.labels)
        return
    told = label_of_one(update, model) if size == 1 else None
    if told is not None:
        yield [told]
        return
    for counts in label_counts(update, model, size):
        yield from arrangements(counts, ordered=not equal)
