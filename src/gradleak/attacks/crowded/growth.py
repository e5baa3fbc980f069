"""Sentences of a crowded update, grown token by token.

After every prefix the language model and the shares say which tokens may come next; all of these are read, and the
leverages of their states decide which go on.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.attacks.crowded.evidence import Judges, Reader
from gradleak.attacks.crowded.openings import early_leverages
from gradleak.attacks.soft.search import loops
from gradleak.core.budget import Budget

# Tokens that are read after a prefix: those no further below the best than the margin, within two bounds; after two
# tokens, after three, and after more.
LOOKS = {2: (6.0, 2, 10), 3: (5.0, 1, 6)}
LOOK = (4.0, 1, 4)
# First tokens that go on with each second one, and for each time more that it came; where second tokens do not show,
# pairs for every sentence; beams for every sentence later on, and how many more there are of all.
FIRSTS, MORE, PAIRS, BEAMS, FEWEST = 4, 2, 24, 3, 16
# Tokens of an opening; beams with the same, and of those that end in the same four.
OPENING, OF_ONE, ALIKE_IN, ALIKE = 3, 3, 4, 2
# A sentence has ended once it fell so far below its best.
GIVE_UP = 10.0
# Last tokens that are considered at each place.
LAST = 3


@dataclass(frozen=True)
class Grown:
    """The tokens of a sentence, the log-likelihood ratio of each but the first, and likely last tokens after each."""

    tokens: tuple[int, ...]
    values: tuple[float, ...] = ()
    ends: tuple[tuple[tuple[float, int], ...], ...] = ()

    @property
    def total(self) -> float:
        return sum(self.values)

    @property
    def best(self) -> Grown:
        """The beginning with the largest total: where the evidence ends, so does the sentence."""
        totals = list(itertools.accumulate(self.values))
        end = max(range(len(totals)), key=totals.__getitem__, default=-1) + 2
        return Grown(self.tokens[:end], self.values[: end - 1], self.ends[:end])

    @property
    def ended(self) -> bool:
        return self.best.total - self.total > GIVE_UP

    def whole(self, least: int) -> Iterator[tuple[tuple[int, ...], float]]:
        """Sentences that end here or before, after so many tokens at least, with all that speaks for each."""
        totals = itertools.accumulate(self.values, initial=0.0)
        for place, (total, ends) in enumerate(zip(totals, self.ends, strict=False), start=1):
            if place >= least:
                yield from (((*self.tokens[:place], token), total + value) for value, token in ends)


def grow(
    reader: Reader,
    judges: Judges,
    first: Mapping[int, float],
    second: Mapping[int, float],
    sentences: int,
    length: int,
    budget: Budget,
    show: Callable[[Sequence[int]], None] = lambda tokens: None,
) -> list[Grown]:
    """All sentences that the evidence speaks for, at their full length and beyond, best first.

    `first` are first tokens with log-probabilities, `second` second ones with about how often they came, `sentences`
    about how many there are.
    """
    bag = reader.bag
    alive = [Grown((token,), (), ((),)) for token in first]
    ended: list[Grown] = []
    _, labels = reader.read(torch.tensor([each.tokens for each in alive], device=bag.device))
    for size in range(1, length):
        if not alive or budget.tick():
            break
        if size == 1:
            parents, columns, values = _pairs(reader, judges, first, second, sentences)
        else:
            parents, columns = _worth_reading(judges, labels, alive, bag, size)
        if not len(parents):
            break
        levers, following = _read_on(reader, parents, bag[columns])
        if size > 1:
            values = judges.later.value(labels[parents, columns], levers)
        last = judges.later.rough(following).topk(min(LAST, len(bag)), dim=1)
        ends = [
            tuple(zip(own, bag[places].tolist(), strict=True))
            for own, places in zip(last.values.tolist(), last.indices, strict=True)
        ]
        grown = [
            Grown((*old.tokens, token), (*old.values, value), (*old.ends, end))
            for old, token, value, end in zip(
                (alive[parent] for parent in parents.tolist()),
                bag[columns].tolist(),
                values.tolist(),
                ends,
                strict=True,
            )
        ]
        going = _going(grown, second, sentences) if size > 1 else list(range(len(grown)))
        on = {parents[n].item() for n in going}
        ended += [each for number, each in enumerate(alive) if number not in on and size > 2]
        # The best beyond an end is kept too: where it ends is looked at later.
        ended += [each for each in grown if each.ended and each.best.total > 0]
        rows = torch.tensor(going, device=bag.device, dtype=torch.long)
        reader.keep(rows)
        alive, labels = [grown[n] for n in going], following[rows]
        if alive:
            show(max(alive, key=lambda each: each.total).tokens)
    longest: dict[tuple[int, ...], Grown] = {}
    for each in (*ended, *alive):
        key = each.best.tokens
        if len(key) > 2 and (key not in longest or len(each.tokens) > len(longest[key].tokens)):
            longest[key] = each
    return sorted(longest.values(), key=lambda each: each.best.total, reverse=True)


def _read_on(reader: Reader, parents: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Read a token after each of these rows."""
    reader.keep(parents)
    return reader.read(tokens[:, None])


def _pairs(
    reader: Reader, judges: Judges, first: Mapping[int, float], second: Mapping[int, float], sentences: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Which second tokens are read after which first ones: rows, columns of the bag, and what speaks for each."""
    model, bag = reader.attribution.model, reader.bag
    values = torch.stack(
        [judges.openings(early_leverages(model, reader.levers, token, list(second))) for token in first]
    )
    prior = torch.tensor(list(first.values())).log_softmax(dim=0) + math.log(len(first))
    values = values + prior.to(values)[:, None]
    order = values.argsort(dim=0, descending=True).tolist()
    chosen = [
        (order[rank][column], column)
        for column, count in enumerate(second.values())
        for rank in range(min(len(first), FIRSTS + MORE * max(0, round(count) - 1)))
    ]
    chosen = sorted(chosen, key=lambda pair: -float(values[pair]))[: PAIRS * sentences + FEWEST]
    rows, places = torch.tensor(chosen, device=bag.device).unbind(dim=1)
    tokens = torch.tensor(list(second), device=bag.device)
    return rows, torch.searchsorted(bag, tokens[places]), values[rows, places]


def _worth_reading(
    judges: Judges, labels: Tensor, alive: Sequence[Grown], bag: Tensor, size: int
) -> tuple[Tensor, Tensor]:
    """Which tokens are read after which of the beams: the rows, and the columns of the bag."""
    margin, least, most = LOOKS.get(size, LOOK)
    rough = judges.later.rough(labels)
    for row, sentence in enumerate(alive):
        looping = loops(sentence.tokens)
        if looping:
            rough[row, torch.isin(bag, torch.tensor(sorted(looping), device=bag.device))] = float("-inf")
    most = min(most, len(bag))
    values, columns = rough.topk(most, dim=1)
    chosen = values >= values[:, :1] - margin
    chosen[:, : min(least, most)] = True
    chosen &= values > float("-inf")
    parents, places = chosen.nonzero(as_tuple=True)
    return parents, columns[parents, places]


def _going(grown: Sequence[Grown], second: Mapping[int, float], sentences: int) -> list[int]:
    """The numbers of those that go on: the best after every second token at first, then the best of all."""
    order = sorted((n for n, each in enumerate(grown) if not each.ended), key=lambda n: -grown[n].total)
    if grown and len(grown[0].tokens) == OPENING:
        begun: Counter[int] = Counter()
        kept = []
        for number in order:
            token = grown[number].tokens[1]
            if begun[token] < FIRSTS + MORE * max(0, round(second[token]) - 1):
                begun[token] += 1
                kept.append(number)
        return kept[: PAIRS * sentences + FEWEST]
    openings: Counter[tuple[int, ...]] = Counter()
    ends: Counter[tuple[int, ...]] = Counter()
    kept = []
    for number in order:
        tokens = grown[number].tokens
        if openings[tokens[:OPENING]] < OF_ONE and ends[tokens[-ALIKE_IN:]] < ALIKE:
            openings[tokens[:OPENING]] += 1
            ends[tokens[-ALIKE_IN:]] += 1
            kept.append(number)
    return kept[: BEAMS * sentences + FEWEST]
