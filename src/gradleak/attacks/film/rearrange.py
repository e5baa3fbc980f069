"""Better orders of a sentence that a search found: first of its phrases, then of its tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor

# Candidates judged at once.
PROPOSALS = 16
# A phrase stage cuts at so many places, in the whole sentence or in a window of so many tokens.
CUTS = (3, 5)
WINDOW = (7, 14)

Score = Callable[[Sequence[Sequence[int]]], Tensor]
Tokens = tuple[int, ...]


def rearranged(
    tokens: Sequence[int],
    score: Score,
    bag: Sequence[int],
    steps: int,
    generator: torch.Generator,
    ends: Callable[[int], bool],
) -> tuple[Tokens, float]:
    """The sentence with the lowest score that so many steps of each stage reach, and that score."""
    best = tuple(tokens)
    best, value = _lowest([best, *_trimmed(best, ends)], score)
    for propose in (_phrases, _edits):
        for _ in range(steps):
            candidates = {propose(best, bag, generator) for _ in range(PROPOSALS)} - {best}
            candidates = {candidate for candidate in candidates if len(candidate) > 1}
            if not candidates:
                break
            candidate, lowest = _lowest(sorted(candidates), score)
            if lowest < value:
                best, value = candidate, lowest
    return best, value


def _lowest(candidates: Sequence[Tokens], score: Score) -> tuple[Tokens, float]:
    values = score(candidates)
    index = int(values.argmin())
    return candidates[index], float(values[index])


def _trimmed(tokens: Tokens, ends: Callable[[int], bool]) -> list[Tokens]:
    """Without what follows the first token that ends a sentence.

    >>> _trimmed((5, 9, 5, 9), lambda token: token == 9)
    [(5, 9)]
    """
    for index, token in enumerate(tokens[:-1]):
        if index and ends(token):
            return [tokens[: index + 1]]
    return []


def _phrases(tokens: Tokens, bag: Sequence[int], generator: torch.Generator) -> Tokens:
    """Cut the sentence or a window of it at some places and put the pieces together in another order."""
    first, last = 0, len(tokens)
    if last > WINDOW[0] and _chance(generator):
        width = _between(WINDOW[0], min(WINDOW[1], last), generator)
        first = _between(0, last - width, generator)
        last = first + width
    count = min(_between(*CUTS, generator), last - first - 1)
    if count < 1:
        return tokens
    cuts = sorted((torch.randperm(last - first - 1, generator=generator)[:count] + first + 1).tolist())
    edges = [first, *cuts, last]
    pieces = [tokens[a:b] for a, b in pairwise(edges)]
    order = torch.randperm(len(pieces), generator=generator).tolist()
    return (*tokens[:first], *(token for number in order for token in pieces[number]), *tokens[last:])


def _edits(tokens: Tokens, bag: Sequence[int], generator: torch.Generator) -> Tokens:
    """Swap two tokens, leave a token out, or put a token of the bag in."""
    kind = _between(0, 2, generator)
    where, other = (_between(0, len(tokens) - 1, generator) for _ in range(2))
    if kind == 0:
        changed = list(tokens)
        changed[where], changed[other] = changed[other], changed[where]
        return tuple(changed)
    if kind == 1:
        return (*tokens[:where], *tokens[where + 1 :])
    return (*tokens[:where], bag[_between(0, len(bag) - 1, generator)], *tokens[where:])


def _between(lowest: int, highest: int, generator: torch.Generator) -> int:
    return int(torch.randint(lowest, highest + 1, (1,), generator=generator))


def _chance(generator: torch.Generator) -> bool:
    return bool(torch.rand(1, generator=generator) < 0.5)
