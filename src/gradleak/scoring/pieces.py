"""Names and numbers of a sentence, and which of them came back: what hurts most when it leaks.

Numbers are found by pattern. Names are found by spaCy where it and its model are installed; elsewhere capitalised
words inside the sentence stand for them, which misses a name at its beginning and takes every such word for one. A
text without any capital, or in a script that has none, hides its names from both.
"""

from __future__ import annotations

import functools
import importlib.util
import operator
import re
from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict

from gradleak.core import assets
from gradleak.scoring.entities import ASSET, holds, recogniser
from gradleak.scoring.text import words

# "nothing": the text has no capitals, so that its names could not be looked for.
NamesBy = Literal["spacy", "capitals", "nothing"]

# The kinds of spaCy's entities that name something; the others are dates, sums and counts, which are numbers.
NAMING = {"PERSON", "NORP", "FAC", "ORG", "GPE", "LOC", "PRODUCT", "EVENT", "WORK_OF_ART", "LAW", "LANGUAGE"}

_NUMBER = re.compile(r"\d+(?:[.,:/\-]\d+)*")
_WORD = re.compile(r"[^\W\d_]+(?:[\'’-][^\W\d_]+)*")
# Capitals that name nothing wherever they stand.
_NO_NAMES = {"i", "dr", "mr", "mrs", "ms", "prof"}


class Count(BaseModel):
    """So many came back of so many that there were."""

    model_config = ConfigDict(extra="forbid")

    found: int
    total: int

    def __add__(self, other: Count) -> Count:
        return Count(found=self.found + other.found, total=self.total + other.total)


class Pieces(BaseModel):
    """Of one sentence, or of many."""

    model_config = ConfigDict(extra="forbid")

    names: Count
    numbers: Count
    names_by: NamesBy

    def __add__(self, other: Pieces) -> Pieces:
        by = other.names_by if self.names_by == "nothing" else self.names_by
        return Pieces(names=self.names + other.names, numbers=self.numbers + other.numbers, names_by=by)


def pieces(truth: str, guess: str) -> Pieces:
    """How many of the names and numbers of a true sentence its recovery holds; each different one counts once.

    >>> found = pieces("In ward 5 Dr. Diaz paid 1,200 to Rosa.", "rosa paid diaz 1, 200 in bed")
    >>> found.names, found.numbers
    (Count(found=2, total=2), Count(found=1, total=2))
    """
    names = _count(_names(truth), guess)
    blind = not names.total and truth == truth.lower() and bool(_WORD.search(truth))
    by = "nothing" if blind else names_by()
    return Pieces(names=names, numbers=_count(numbers(truth), guess), names_by=by)


def pieces_held(truth: str, guess: str) -> list[str]:
    """Which of them its recovery holds, as the true sentence has them.

    >>> pieces_held("In ward 5 Dr. Diaz paid 1,200 to Rosa.", "rosa paid diaz 1, 200 in bed")
    ['Diaz', 'Rosa', '1,200']
    """
    there = words(guess)
    sought = dict.fromkeys([*_names(truth), *numbers(truth)])
    return [text for text in sought if (piece := words(text)) and holds(there, piece)]


def _names(text: str) -> Sequence[str]:
    return names_by_spacy(text) if names_by() == "spacy" else capitalised(text)


def total(counted: Sequence[Pieces | None]) -> Pieces | None:
    """All of them together; None where some were not counted, or there are none."""
    known = [pieces for pieces in counted if pieces is not None]
    return functools.reduce(operator.add, known) if known and len(known) == len(counted) else None


def numbers(text: str) -> list[str]:
    """
    >>> numbers("Room 12, paid 1,200.50 on 05/03, B2")
    ['12', '1,200.50', '05/03', '2']
    """
    return _NUMBER.findall(text)


def capitalised(text: str) -> list[str]:
    """Words with a capital that do not begin a sentence; neighbours are one name.

    >>> capitalised("Yesterday Ana Diaz and I met Bob. He left Leeds")
    ['Ana Diaz', 'Bob', 'Leeds']
    """
    names: list[str] = []
    last, begins, joins = None, True, False
    for match in _WORD.finditer(text):
        between = text[last.end() : match.start()] if last else ""
        begins = begins if last is None else bool(re.search(r"[.!?:\n]", between)) and not _short(last.group())
        word = match.group()
        named = word[0].isupper() and not begins and word.lower() not in _NO_NAMES
        if named and joins and between == " ":
            names[-1] += f" {word}"
        elif named:
            names.append(word)
        last, joins = match, named
    return names


def _short(word: str) -> bool:
    """Whether a full stop behind this word may belong to it, as in Dr. or J."""
    return word[0].isupper() and len(word) <= 2


@functools.lru_cache(maxsize=1 << 14)
def names_by_spacy(text: str) -> tuple[str, ...]:
    return tuple(span.text for span in recogniser()(text).ents if span.label_ in NAMING)


@functools.cache
def names_by() -> NamesBy:
    """How names are found on this machine. Nothing is fetched for it."""
    there = importlib.util.find_spec("spacy") is not None and assets.is_cached(assets.find(ASSET))
    return "spacy" if there else "capitals"


def _count(sought: Sequence[str], guess: str) -> Count:
    different = {piece for text in sought if (piece := tuple(words(text)))}
    there = words(guess)
    return Count(found=sum(holds(there, piece) for piece in different), total=len(different))
