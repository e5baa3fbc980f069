"""Sentences from a bag of tokens: the attacked language model puts them in order, the update shows which are right.

All sentences of a search grow side by side, with cached keys and values, and only the bag's rows of the output matrix
are multiplied. A sentence's value is the log-probability of its tokens plus, if the update is used, how much of it
each token explains.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from gradleak.core.budget import Budget

# What a share counts beside a log-probability. Measured on smollm2 and Enron: of the next tokens of a batch of 64 the
# right token is first among the bag in 62, 87, 91, 90 of 100 cases for 4, 8, 16, 32 (22 without), for 128 in 52, 75,
# 86, 82.
WEIGHT = 16.0
# A share is taken for no more than this, which tokens of the batch have on average: putting in a token that is common
# in the batch must not pay.
MOST_SHARE = 1.0
# A sentence goes on while its tokens explain this much on average; after its end they explain nothing.
LEAST_SHARE = 0.3
# That its last token ends a sentence is worth as much as so many tokens.
END_BONUS = 1.0
# It is given up once it has fallen so far below its best, unless the settings say otherwise.
GIVE_UP = 1.5
# Pairs of first tokens that are looked at, and third tokens after each.
PAIRS, THIRDS = 1024, 3
# In how many sentences of a batch the commonest second token may stand.
SEVERAL = 4.0
# The share of a sentence's tokens that no sentence found before may have used up.
STILL_THERE = 0.5


@dataclass(frozen=True)
class Grown:
    """A sentence that a search has grown: its tokens, and what each after the first adds."""

    tokens: tuple[int, ...]
    log_probs: tuple[float, ...]
    shares: tuple[float, ...]

    @property
    def likelihood(self) -> float:
        """Mean log-probability of a token."""
        return sum(self.log_probs) / max(1, len(self.log_probs))

    @property
    def explained(self) -> float:
        """Mean share of a token: about 1 if it was in the batch."""
        return sum(self.shares) / max(1, len(self.shares))

    @property
    def surplus(self) -> float:
        """What all tokens explain beyond what would be too little: largest where a sentence of the batch ends."""
        return sum(min(share, MOST_SHARE) - LEAST_SHARE for share in self.shares)


class Reader(Protocol):
    """Reads on in sentences, and judges every token of the bag as the next of each."""

    def first(self, openings: Tensor) -> tuple[Tensor, Tensor]:
        """After reading these openings from the start, (rows, tokens): log-probabilities and shares, (rows, bag)."""
        ...

    def further(self, rows: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """After keeping these rows and reading a token each: log-probabilities and shares, (rows, bag)."""
        ...


@dataclass(frozen=True)
class BeamSettings:
    """`beams` grow at once, shared evenly by the openings; n-grams of size `repeat` occur once in a sentence.

    Sentences have at most `length` tokens and do not end before `least`; of a token with a limit they have no more
    than that. A share counts up to `most_share`; a sentence is given up once it has fallen `give_up` below its best.
    """

    beams: int = 32
    repeat: int = 2
    length: int = 64
    weight: float = WEIGHT
    least: int = 2
    limits: Mapping[int, int] = field(default_factory=dict)
    most_share: float = MOST_SHARE
    give_up: float = GIVE_UP


def likely_openings(reader: Reader, bag: Tensor, first: Mapping[int, float], weight: float) -> list[Grown]:
    """The first three tokens of sentences that the update explains, likeliest first.

    `first` are first tokens with log-probabilities. Of openings that differ in the first token only, the likeliest is
    given.
    """
    ids, prior = torch.tensor(list(first), device=bag.device), torch.tensor(list(first.values()), device=bag.device)
    log_probs, shares = reader.first(ids[:, None])
    seconds = _second_shares(shares)
    possible = log_probs.isfinite().any(dim=1).nonzero()[:, 0]
    if not len(possible):
        return []
    values = (log_probs + weight * seconds)[possible]
    each = min(len(bag), max(1, PAIRS // len(possible)))
    columns = values.topk(each, dim=1).indices.reshape(-1)
    rows = possible.repeat_interleave(each)
    third_log_probs, third_shares = reader.further(rows, bag[columns])
    totals = (prior[rows] + log_probs[rows, columns] + weight * seconds[rows, columns])[:, None] + third_log_probs
    totals = totals + weight * third_shares.clamp(-LEAST_SHARE, MOST_SHARE)
    best = totals.topk(min(len(bag), THIRDS), dim=1)
    likeliest: dict[tuple[int, int], tuple[float, Grown]] = {}
    for number, (row, column) in enumerate(zip(rows.tolist(), columns.tolist(), strict=True)):
        for value, third in zip(best.values[number].tolist(), best.indices[number].tolist(), strict=True):
            opening = Grown(
                (int(ids[row]), int(bag[column]), int(bag[third])),
                (float(log_probs[row, column]), float(third_log_probs[number, third])),
                (float(seconds[row, column]), float(third_shares[number, third])),
            )
            after = (int(bag[column]), int(bag[third]))
            if value > likeliest.get(after, (float("-inf"), opening))[0]:
                likeliest[after] = (value, opening)
    return [opening for _, opening in sorted(likeliest.values(), key=lambda pair: pair[0], reverse=True)]


def _second_shares(shares: Tensor) -> Tensor:
    """What each token of the bag explains as the second after each first token, up to 1.

    Whatever a sentence begins with, its first state is nearly the same: all others look at it and little is in it. So
    all sentences of a batch share what is explained there, and a token counts relative to the token that explains
    most, which may be second in several sentences.
    """
    most = shares.max(dim=1, keepdim=True).values.clamp_min(1e-6)
    return (SEVERAL * shares / most).clamp(-LEAST_SHARE, MOST_SHARE)


def search(
    reader: Reader,
    bag: Tensor,
    openings: Sequence[Grown],
    settings: BeamSettings,
    *,
    ends: Callable[[int], bool],
    forbidden: NGrams,
    budget: Budget,
    show: Callable[[Sequence[int]], None] = lambda tokens: None,
) -> list[Grown]:
    """Every continuation of the openings, which are equally long, that may be a whole sentence.

    Without shares (`weight` 0) those are the continuations whose last token `ends` a sentence, which do not go on,
    and what is left at the end; with shares all of them, as shares show where a sentence ends. `forbidden` holds
    n-grams of sentences found before.
    """
    alive = list(openings)
    if not alive or not len(bag):
        return []
    seen: list[Grown] = []
    given, closing = len(alive[0].tokens), [column for column, token in enumerate(bag.tolist()) if ends(token)]
    log_probs, shares = reader.first(torch.tensor([sentence.tokens for sentence in alive], device=bag.device))
    for _ in range(given, settings.length):
        values = _values(alive, settings)[:, None].to(log_probs) + log_probs
        values = values + settings.weight * shares.clamp(-LEAST_SHARE, settings.most_share)
        _forbid(values, alive, bag, settings, forbidden)
        if len(alive[0].tokens) + 1 < settings.least:
            values[:, closing] = float("-inf")
        picked = _pick(values, alive, settings.beams, given)
        if not picked:
            break
        grown = [
            Grown(
                (*alive[row].tokens, int(bag[column])),
                (*alive[row].log_probs, float(log_probs[row, column])),
                (*alive[row].shares, float(shares[row, column])),
            )
            for row, column in picked
        ]
        if settings.weight:
            seen += grown
            going = [n for n, sentence in enumerate(grown) if not _given_up(sentence, settings.give_up)]
        else:
            seen += [sentence for sentence in grown if ends(sentence.tokens[-1])]
            going = [n for n, sentence in enumerate(grown) if not ends(sentence.tokens[-1])]
        alive = [grown[n] for n in going]
        if not alive or budget.tick():
            break
        show(alive[0].tokens)
        rows = torch.tensor([picked[n][0] for n in going], device=bag.device)
        log_probs, shares = reader.further(rows, bag[[picked[n][1] for n in going]])
    return seen if settings.weight else seen + alive


class NGrams:
    """A set of n-grams, to look up what may not follow."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._after: dict[tuple[int, ...], set[int]] = defaultdict(set)

    def add(self, tokens: Sequence[int]) -> None:
        for first in range(len(tokens) - self.size + 1):
            *before, last = tokens[first : first + self.size]
            self._after[tuple(before)].add(last)

    def after(self, tokens: Sequence[int]) -> Iterable[int]:
        """What would complete an n-gram of the set after these tokens.

        >>> pairs = NGrams(2)
        >>> pairs.add([1, 2, 3, 1, 4])
        >>> sorted(pairs.after([7, 1]))
        [2, 4]
        """
        return self._after.get(tuple(tokens[len(tokens) - self.size + 1 :]), ()) if self.size else ()


def distinct(grown: Iterable[Grown], overlap: int, ends: Callable[[int], bool]) -> list[Grown]:
    """Of sentences that share n-grams of this size the best, by surplus and by how they end; best first."""

    def worth(sentence: Grown) -> float:
        # Which token ends a sentence the model knows better than the update: expected ends leave hardly a trace.
        return sentence.surplus + sentence.log_probs[-1] / WEIGHT + END_BONUS * ends(sentence.tokens[-1])

    kept: list[Grown] = []
    taken: set[tuple[int, ...]] = set()
    for sentence in sorted(grown, key=worth, reverse=True):
        tokens = sentence.tokens
        grams = {tokens[n : n + overlap] for n in range(max(1, len(tokens) - overlap + 1))}
        if not grams & taken:
            kept.append(sentence)
            taken |= grams
    return kept


class RemainingTokens:
    """How many of each token the sentences found so far leave; of tokens without a count there are always enough."""

    def __init__(self, counts: Mapping[int, int]) -> None:
        self._left = dict(counts)

    def take(self, tokens: Sequence[int]) -> bool:
        """Take a sentence's tokens out, if most of them are still there.

        >>> remaining = RemainingTokens({1: 2, 2: 1})
        >>> remaining.take([1, 2]), remaining.take([2, 2, 1]), remaining.take([1, 2])
        (True, False, True)
        """
        wanted = Counter(tokens)
        there = sum(min(self._left.get(token, count), count) for token, count in wanted.items())
        if there < STILL_THERE * len(tokens):
            return False
        for token, count in wanted.items():
            if token in self._left:
                self._left[token] = max(0, self._left[token] - count)
        return True


def _values(alive: Sequence[Grown], settings: BeamSettings) -> Tensor:
    most, weight = settings.most_share, settings.weight
    return torch.tensor(
        [sum(a.log_probs) + weight * sum(max(-LEAST_SHARE, min(s, most)) for s in a.shares) for a in alive]
    )


def _given_up(sentence: Grown, limit: float) -> bool:
    """Whether the last tokens explain so little that the sentence must have ended, or was never there."""
    best = running = 0.0
    for share in sentence.shares:
        running += min(share, MOST_SHARE) - LEAST_SHARE
        best = max(best, running)
    return best - running > limit


def _forbid(values: Tensor, alive: Sequence[Grown], bag: Tensor, settings: BeamSettings, forbidden: NGrams) -> None:
    columns = {token: column for column, token in enumerate(bag.tolist())}
    for row, sentence in enumerate(alive):
        own = NGrams(settings.repeat)
        if settings.repeat:
            own.add(sentence.tokens)
        used = Counter(sentence.tokens) if settings.limits else {}
        spent = (token for token, limit in settings.limits.items() if used.get(token, 0) >= limit)
        out = {*own.after(sentence.tokens), *forbidden.after(sentence.tokens), *spent}
        places = [columns[token] for token in out if token in columns]
        if places:
            values[row, places] = float("-inf")


def _pick(values: Tensor, alive: Sequence[Grown], beams: int, given: int) -> list[tuple[int, int]]:
    """The best (row, column) pairs; every opening (the first `given` tokens) that is alive has as many places."""
    rows: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for row, sentence in enumerate(alive):
        rows[sentence.tokens[:given]].append(row)
    places = max(1, beams // len(rows))
    picked: list[tuple[int, int]] = []
    for own in rows.values():
        among = values[own].flatten()
        top = among.topk(min(len(among), places))
        for value, place in zip(top.values.tolist(), top.indices.tolist(), strict=True):
            if value > float("-inf"):
                row, column = divmod(place, values.shape[1])
                picked.append((own[row], column))
    return picked
