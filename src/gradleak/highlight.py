"""Which words of a reconstruction are right: pairs of neighbours that stand in the truth, single words, neither."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise
from typing import Literal

Mark = Literal["pair", "word", "none"]

_PIECE = re.compile(r"[A-Za-z0-9]+|[^A-Za-z0-9]+")


def highlight(truth: str, guess: str) -> list[tuple[str, Mark]]:
    """The guess in pieces, each with its mark. Words count as often as the truth has them.

    >>> highlight("the cat sat down", "the cat down up")
    [('the', 'pair'), (' ', 'none'), ('cat', 'pair'), (' ', 'none'), ('down', 'word'), (' ', 'none'), ('up', 'none')]
    """
    pieces = _PIECE.findall(guess)
    places = [i for i, piece in enumerate(pieces) if piece[0].isalnum() and piece.isascii()]
    said = [pieces[i].lower() for i in places]
    true = [piece.lower() for piece in _PIECE.findall(truth) if piece[0].isalnum() and piece.isascii()]
    marks: list[Mark] = ["none"] * len(said)
    pairs = Counter(pairwise(true))
    left = Counter(true)
    for i, pair in enumerate(pairwise(said)):
        if pairs[pair] > 0:
            pairs[pair] -= 1
            marks[i] = marks[i + 1] = "pair"
    left.subtract(word for word, mark in zip(said, marks, strict=True) if mark == "pair")
    for i, word in enumerate(said):
        if marks[i] == "none" and left[word] > 0:
            left[word] -= 1
            marks[i] = "word"
    shown = dict(zip(places, marks, strict=True))
    return [(piece, shown.get(i, "none")) for i, piece in enumerate(pieces)]
