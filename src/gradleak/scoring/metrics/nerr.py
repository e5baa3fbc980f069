"""NERR: how many of a text's names, places, dates and sums a recovery holds. They hurt most when they leak."""

from __future__ import annotations

from collections.abc import Sequence

from gradleak.core.progress import Progress
from gradleak.scoring.entities import holds, named_entities, recogniser
from gradleak.scoring.metric import Metric, TextPair
from gradleak.scoring.text import words


def entity_recall(entities: Sequence[str], guess: str) -> float | None:
    """Share of the entities whose words stand in the guess, together and in order; None if there are no entities.

    Words are ROUGE's (case and signs do not count), and an entity that is named twice counts once.

    >>> entity_recall(["Rosa Diaz", "Leeds", "5 May"], "On May 5 rosa diaz left LEEDS.")
    66.66...
    >>> entity_recall([], "nothing to find") is None
    True
    """
    sought = {entity_words for entity in entities if (entity_words := tuple(words(entity)))}
    if not sought:
        return None
    there = words(guess)
    return 100 * sum(holds(there, entity) for entity in sought) / len(sought)


def _nerr(pair: TextPair) -> float | None:
    return entity_recall(named_entities(pair.truth), pair.guess.text)


def _load(progress: Progress) -> object:
    return recogniser()


NERR = Metric(
    "nerr", "Entities (NERR)", "named entities that the recovery holds, of sentences that have any",
    low=0, high=100, higher_is_closer=True, modality="text", function=_nerr, optional=True, prepare=_load,
)  # fmt: skip
