"""Which words of a reconstruction are right: pairs of neighbours that stand in the truth, single words, neither."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise
from typing import Literal

from gradleak.scoring.text import WORD, words

Mark = Literal["pair", "word", "none"]

# Words, and what stands between them.
_PIECE = re.compile(f"({WORD.pattern})")


def highlight(truth: str, guess: str) -> list[tuple[str, Mark]]:
    """The guess in pieces, each with its mark. Words count as often as the truth has them.

    >>> highlight("the cat sat down", "the cat down up")
    [('the', 'pair'), (' ', 'none'), ('cat', 'pair'), (' ', 'none'), ('down', 'word'), (' ', 'none'), ('up', 'none')]
    """
    pieces = [piece for piece in _PIECE.split(guess) if piece]
    places = [i for i, piece in enumerate(pieces) if WORD.fullmatch(piece)]
    guessed = [pieces[i].lower() for i in places]
    true = words(truth)
    marks: list[Mark] = ["none"] * len(guessed)
    pairs = Counter(pairwise(true))
    left = Counter(true)
    for i, pair in enumerate(pairwise(guessed)):
        if pairs[pair] > 0:
            pairs[pair] -= 1
            marks[i] = marks[i + 1] = "pair"
    left.subtract(word for word, mark in zip(guessed, marks, strict=True) if mark == "pair")
    for i, word in enumerate(guessed):
        if marks[i] == "none" and left[word] > 0:
            left[word] -= 1
            marks[i] = "word"
    shown = dict(zip(places, marks, strict=True))
    return [(piece, shown.get(i, "none")) for i, piece in enumerate(pieces)]
