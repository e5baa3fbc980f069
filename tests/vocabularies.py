"""Vocabularies for tiny tokenizers, the same in every process: Hugging Face's trainers break ties at random."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

SIZE = 400


def wordpiece(words: Counter[str], special: list[str]) -> dict[str, int]:
    """All characters, as beginnings and as continuations, then the most frequent words."""
    letters = sorted(set("".join(words)))
    frequent = sorted((word for word in words if len(word) > 1), key=lambda word: (-words[word], word))
    tokens = [*special, *letters, *(f"##{letter}" for letter in letters), *frequent]
    return _numbered(tokens[:SIZE])


def byte_pairs(
    words: Counter[str], special: list[str], alphabet: list[str]
) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """A vocabulary and its merges: the most frequent pair each time, of equal ones the first by name."""
    spelled = {word: list(word) for word in words}
    tokens, merges = [*special, *sorted(alphabet)], []
    pairs = Counter[tuple[str, str]]()
    for word in words:
        _count(pairs, spelled[word], words[word])
    while len(tokens) < SIZE:
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        for word, pieces in spelled.items():
            if best[0] in pieces and best in pairwise(pieces):
                _count(pairs, pieces, -words[word])
                spelled[word] = _merged(pieces, best)
                _count(pairs, spelled[word], words[word])
        merges.append(best)
        tokens.append("".join(best))
    return _numbered(tokens), merges


def _count(pairs: Counter[tuple[str, str]], pieces: list[str], times: int) -> None:
    for pair in pairwise(pieces):
        pairs[pair] += times


def _merged(pieces: list[str], pair: tuple[str, str]) -> list[str]:
    merged: list[str] = []
    for piece in pieces:
        if merged and (merged[-1], piece) == pair:
            merged[-1] += piece
        else:
            merged.append(piece)
    return merged


def _numbered(tokens: list[str]) -> dict[str, int]:
    return {token: number for number, token in enumerate(tokens)}
