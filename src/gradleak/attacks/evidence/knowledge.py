"""What an attack knows of a batch before it searches: from the manifest, and from the gradient itself."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gradleak.attacks.evidence.labels import arrangements, label_counts, label_of_one, number_of_one
from gradleak.attacks.evidence.lengths import length_guesses, longest_sentence, total_tokens
from gradleak.core.errors import GradleakError
from gradleak.models.tasks import Label
from gradleak.models.text import TextModel
from gradleak.updates.update import Update


@dataclass(frozen=True)
class Knowledge:
    """Size, labels and token counts of a batch, and which of them the attack had to find."""

    lengths: list[int]
    labels: list[Label] | None
    found: list[str]


def gather(update: Update, model: TextModel, attack: str, most: int) -> list[Knowledge]:
    """What is known, and the rest from the gradient: a single entry, or up to `most` guesses, best first."""
    known = update.known
    size = known.size
    if not size:
        raise GradleakError(f"{attack} needs the batch size, which is not known")
    if model.goal.draws_targets:
        raise GradleakError(
            f"{attack} cannot match {model.task}: which tokens were predicted is the client's secret, so no guess "
            "has the right gradient; use exact or bag"
        )
    needs_labels = model.goal.labelled
    found = ["lengths"] if known.lengths is None else []
    found += ["labels"] if needs_labels and known.labels is None else []
    known_labels = _known_labels(update, model, size, attack)
    counts = list(itertools.islice(label_counts(update, model, size), most)) if known_labels is None else []
    guesses: list[tuple[int, Knowledge]] = []
    for at, row in enumerate(itertools.islice(_lengths(update, model, size), most)):
        # If all lengths are equal it does not matter which sentence has which label.
        ordered = len(set(row)) > 1
        possible: Iterable[list[Label]] = (
            [known_labels]
            if known_labels is not None
            else ([*labels] for each in counts for labels in arrangements(each, ordered=ordered))
        )
        for number, labels in enumerate(itertools.islice(possible, most)):
            guesses.append((at + number, Knowledge(row, labels if needs_labels else None, found)))
    # Along the diagonals, so that the likeliest of both come first.
    return [guess for _, guess in sorted(guesses, key=lambda entry: entry[0])[:most]]


def _lengths(update: Update, model: TextModel, size: int) -> Iterator[list[int]]:
    if update.known.lengths is not None:
        return iter([list(update.known.lengths)])
    longest = longest_sentence(update, model)
    total = None if size == 1 and longest else total_tokens(update, model, size)
    return length_guesses(model, size, longest, total)


def _known_labels(update: Update, model: TextModel, size: int, attack: str) -> list[Label] | None:
    """The labels if they are known or plain to see; none for a language model; None if they must be guessed."""
    if not model.goal.labelled:
        return []
    if update.known.labels is not None:
        return list(update.known.labels)
    if model.goal.label_choices(model):
        single = label_of_one(update, model) if size == 1 else None
        return None if single is None else [single]
    number = number_of_one(update, model) if size == 1 else None
    if number is None:
        raise GradleakError(
            f"{attack} needs the labels of a {model.task} batch, which are not known"
            + (" and show in the head's bias for one sentence only" if model.goal.one_per_text else "")
            + "; use exact, or --known labels"
        )
    return [number]
