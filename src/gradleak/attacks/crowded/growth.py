"""Sentences of a crowded update, grown token by token.

After every prefix the language model and the shares say which tokens may come next; all of these are read, and the
leverages of their states decide which go on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.attacks.crowded.evidence import Judges, Reader, seconds
from gradleak.attacks.soft.search import loops
from gradleak.core.budget import Budget

# Tokens that are read after a prefix: those no further below the best than the margin, within two bounds; after two
# tokens, after three, and after more.
LOOKS = {2: (8.0, 4, 16), 3: (7.0, 4, 12)}
LOOK = (6.0, 2, 8)
# Pairs of first tokens that are read for every sentence, and with the same second token; those of each that go on;
# beams for every sentence later on, and how many more there are of all.
PAIRS_READ, READ_OF_ONE, PAIRS, PAIRS_OF_ONE, BEAMS, FEWEST = 24, 6, 8, 3, 3, 16
# Beams with the same first three tokens, and of those that end in the same four.
OF_ONE, ALIKE_IN, ALIKE = 3, 4, 2
# A sentence has ended once it fell so far below its best.
GIVE_UP = 10.0


@dataclass(frozen=True)
class Grown:
    """The tokens of a sentence, and the log-likelihood ratio of each but the first."""

    tokens: tuple[int, ...]
    values: tuple[float, ...]

    @property
    def total(self) -> float:
        return sum(self.values)

    @property
    def best(self) -> Grown:
        """The beginning with the largest total: where the evidence ends, so does the sentence."""
        totals = torch.tensor([0.0, *self.values]).cumsum(dim=0)
        end = int(totals.argmax())
        return Grown(self.tokens[: end + 1], self.values[:end])

    @property
    def ended(self) -> bool:
        return self.best.total - self.total > GIVE_UP


def grow(
    reader: Reader,
    judges: Judges,
    first: Mapping[int, float],
    sentences: int,
    length: int,
    budget: Budget,
    show: Callable[[Sequence[int]], None] = lambda tokens: None,
) -> list[Grown]:
    """All sentences that the evidence speaks for, at their full length and beyond, best first.

    `first` are first tokens with log-probabilities, `sentences` about how many there are.
    """
    bag = reader.bag
    alive = [Grown((token,), ()) for token in first]
    ended: list[Grown] = []
    _, labels = reader.read(torch.tensor([each.tokens for each in alive], device=bag.device))
    for size in range(1, length):
        if not alive or budget.tick():
            break
        if size == 1:
            parents, columns = _pairs(reader, judges, list(first), sentences)
        else:
            parents, columns = _worth_reading(judges, labels, alive, bag, size)
        if not len(parents):
            break
        levers, following = _read_on(reader, parents, bag[columns])
        known = labels[parents, columns]
        values = judges.at(size).value(known, levers)
        if size == 1:  # a first token is judged by nothing else
            values = values + judges.second.before[0] * torch.tensor([first[alive[p].tokens[0]] for p in parents])
        grown = [
            Grown((*alive[parent].tokens, int(bag[column])), (*alive[parent].values, float(value)))
            for parent, column, value in zip(parents.tolist(), columns.tolist(), values, strict=True)
        ]
        going = _going(grown, size + 1, sentences)
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


def _pairs(reader: Reader, judges: Judges, first: Sequence[int], sentences: int) -> tuple[Tensor, Tensor]:
    """Which second tokens are read after which first ones, by early layers: rows, and columns of the bag."""
    model, bag = reader.attribution.model, reader.bag
    values = torch.stack([judges.openings(seconds(model, reader.levers, token, bag)) for token in first])
    best = values.topk(min(READ_OF_ONE, len(first)), dim=0)
    chosen = best.values.flatten().topk(min(best.values.numel(), PAIRS_READ * sentences + FEWEST)).indices
    return best.indices.flatten()[chosen], chosen % len(bag)


def _worth_reading(
    judges: Judges, labels: Tensor, alive: Sequence[Grown], bag: Tensor, size: int
) -> tuple[Tensor, Tensor]:
    """Which tokens are read after which of the beams: the rows, and the columns of the bag."""
    margin, least, most = LOOKS.get(size, LOOK)
    rough = judges.at(size).rough(labels)
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


def _going(grown: Sequence[Grown], size: int, sentences: int) -> list[int]:
    """The numbers of those that go on."""
    order = sorted((n for n, each in enumerate(grown) if not each.ended), key=lambda n: -grown[n].total)
    if size == 2:
        seconds: Counter[int] = Counter()
        kept = []
        for number in order:
            second = grown[number].tokens[1]
            if seconds[second] < PAIRS_OF_ONE:
                seconds[second] += 1
                kept.append(number)
        return kept[: PAIRS * sentences + FEWEST]
    openings: Counter[tuple[int, ...]] = Counter()
    ends: Counter[tuple[int, ...]] = Counter()
    kept = []
    for number in order:
        tokens = grown[number].tokens
        if openings[tokens[:3]] < OF_ONE and ends[tokens[-ALIKE_IN:]] < ALIKE:
            openings[tokens[:3]] += 1
            ends[tokens[-ALIKE_IN:]] += 1
            kept.append(number)
    return kept[: BEAMS * sentences + FEWEST]
