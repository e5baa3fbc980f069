"""Candidate orders of a sentence's tokens, for the discrete phase of LAMP."""

from __future__ import annotations

import torch

Order = tuple[int, ...]


def swap(n: int, first: int, second: int, _: int) -> list[int]:
    """Two tokens change places.

    >>> swap(5, 1, 3, 0)
    [0, 3, 2, 1, 4]
    """
    order = list(range(n))
    order[first], order[second] = order[second], order[first]
    return order


def move_token(n: int, source: int, target: int, _: int) -> list[int]:
    """A token goes somewhere else.

    >>> move_token(5, 0, 3, 0)
    [1, 2, 3, 0, 4]
    """
    order = list(range(n))
    order.insert(target, order.pop(source))
    return order


def move_span(n: int, first: int, last: int, target: int) -> list[int]:
    """A run of tokens goes somewhere else.

    >>> move_span(5, 1, 2, 3)
    [0, 3, 4, 1, 2]
    """
    first, last = min(first, last), max(first, last)
    span = list(range(first, last + 1))
    rest = [i for i in range(n) if i < first or i > last]
    place = target % (len(rest) + 1)
    return rest[:place] + span + rest[place:]


def rotate(n: int, cut: int, _: int, __: int) -> list[int]:
    """The beginning goes to the end.

    >>> rotate(5, 2, 0, 0)
    [2, 3, 4, 0, 1]
    """
    return list(range(cut, n)) + list(range(cut))


MOVES = (swap, move_token, move_span, rotate)


def propose(n: int, count: int, generator: torch.Generator) -> list[Order]:
    """At most `count` different orders of n tokens: the present order first, then the four moves in equal shares.

    >>> propose(1, 200, torch.Generator().manual_seed(0))
    [(0,)]
    """
    seen: dict[Order, None] = {tuple(range(n)): None}
    if n > 1:
        draws = torch.randint(n, (count - 1, 3), generator=generator).tolist()
        for number, (a, b, c) in enumerate(draws):
            seen.setdefault(tuple(MOVES[number % len(MOVES)](n, a, b, c)))
    return list(seen)
