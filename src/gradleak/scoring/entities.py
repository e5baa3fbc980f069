"""The named entities of a text, by spaCy, whose small pinned model is the asset `spacy-en`."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from gradleak.core import assets
from gradleak.core.errors import GradleakError

ASSET = "spacy-en"


def holds(there: Sequence[str], sought: Sequence[str]) -> bool:
    """Whether these words stand among the others, together and in order.

    >>> holds(["on", "may", "5"], ["may", "5"]), holds(["may", "on", "5"], ["may", "5"])
    (True, False)
    """
    size = len(sought)
    return any(list(there[i : i + size]) == list(sought) for i in range(len(there) - size + 1))


@functools.lru_cache(maxsize=1 << 14)  # the control compares the same truths ten times
def named_entities(text: str) -> tuple[str, ...]:
    """The named entities of a text as it was written, in order and of every kind that spaCy tells apart."""
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
