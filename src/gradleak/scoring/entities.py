"""NERR: how many of a text's names, places, dates and sums a recovery holds. They are what hurts most when it leaks.

The entities are found by spaCy in the true text, as it was written; a small pinned model of it is the asset
`spacy-en`. All of its kinds of entity count.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from gradleak.core import assets
from gradleak.core.errors import GradleakError
from gradleak.scoring.text import words

NERR = "nerr"
ASSET = "spacy-en"


def entity_recall(entities: Sequence[str], guess: str) -> float | None:
    """Share of the entities whose words stand in the guess, together and in order; None if there are no entities.

    Words are ROUGE's (case and signs do not count), and an entity that is named twice counts once.

    >>> entity_recall(["Rosa Diaz", "Leeds", "5 May"], "On May 5 rosa diaz left LEEDS.")
    66.66...
    >>> entity_recall([], "nothing to find") is None
    True
    """
    sought = {found for entity in entities if (found := tuple(words(entity)))}
    if not sought:
        return None
    there = words(guess)
    return 100 * sum(holds(there, entity) for entity in sought) / len(sought)


def holds(there: Sequence[str], sought: Sequence[str]) -> bool:
    """Whether these words stand among the others, together and in order.

    >>> holds(["on", "may", "5"], ["may", "5"]), holds(["may", "on", "5"], ["may", "5"])
    (True, False)
    """
    size = len(sought)
    return any(list(there[i : i + size]) == list(sought) for i in range(len(there) - size + 1))


@functools.lru_cache(maxsize=1 << 14)  # the control compares the same truths ten times
def named_entities(text: str) -> tuple[str, ...]:
    """The named entities of a text, in order."""
    return tuple(span.text for span in recogniser()(text).ents)


@functools.cache
def recogniser() -> Any:
    """spaCy's English model with nothing but its entity recogniser, fetched on first use."""
    try:
        import spacy
    except ImportError as error:
        raise GradleakError("named entities need the spaCy library: pip install 'gradleak[entities]'") from error
    # The asset holds what the recogniser needs and no more; the configuration still lists the other parts.
    absent = ["tok2vec", "tagger", "parser", "senter", "attribute_ruler", "lemmatizer"]
    return spacy.load(assets.pull(ASSET), exclude=absent)
