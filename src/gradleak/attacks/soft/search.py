"""Sentences of a language model's batch, grown token by token along the evidence of an update.

Beams are shared out among different openings, so that sentences of a batch do not crowd each other out. The language
model and what tokens explain of the update choose which tokens are looked at more closely after each prefix; the
states of these decide.
"""

from __future__ import annotations

import copy
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradleak.attacks.soft.continuations import continued
from gradleak.attacks.soft.directions import Observed
from gradleak.attacks.soft.judge import Judge
from gradleak.attacks.soft.likeness import NOT_COMPARED, Reach
from gradleak.attacks.soft.predictions import BagReader
from gradleak.core.budget import Budget
from gradleak.models.text import TextModel

# Tokens of an opening.
OPENING = 3
# Pairs of first tokens that are looked at with a third, for every sentence, and for each second token.
PAIRS, PAIRS_OF_ONE = 64, 6
# Beams of one opening at least and at most: the true one stands far above the others once it is some tokens long.
LEAST_OF_ONE, MOST_OF_ONE = 2, 32
# Of beams of one opening that end in the same tokens only the best goes on, so that they do not all differ far back.
ALIKE_IN = 3
# Lengths at which the worse half of the openings is given up; their beams go to the others.
HALVED_AT = (4, 5, 6, 8)
# Lengths at which the coefficients of the surest beams of each opening are compared, so many of each.
COMPARED_AT, COMPARED = range(8, 1000, 4), 2
# An opening is given up once coefficients of so many comparisons reached no further.
STALLED = 2
# A sentence is given up once it has fallen so far below its best.
GIVE_UP = 6.0
# No run of up to so many tokens comes twice in a row: a loop of common tokens fits everywhere.
LONGEST_LOOP = 8
# A token comes twice in a row only where the language model finds that as likely as this.
TWICE = 0.04
# Sentences that share a run of so many tokens are the same sentence.
SAME = 4
# Tokens that go through the model at once.
AT_ONCE = 2048


@dataclass(frozen=True)
class Look:
    """Which tokens are looked at closely after a prefix, going by language model and predictions alone.

    Those whose log-probability is no further than `margin` below that of the likeliest, within two bounds.
    """

    margin: float
    least: int
    most: int

    def at(self, rough: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Rows that are looked at together, and the columns of each; `rough` are log-likelihood ratios.

        >>> rough = torch.tensor([[9.0, 0.0, 1.0, 0.0], [1.0, 0.0, 1.0, 1.0]])
        >>> [(rows.tolist(), columns.tolist()) for rows, columns in Look(1.5, 1, 4).at(rough)]
        [([0], [[0]]), ([1], [[0, 2, 3, 1]])]
        """
        values, columns = rough.sort(dim=1, stable=True, descending=True)
        most = min(self.most, rough.shape[1])
        counts = (values >= values[:, :1] - self.margin).sum(dim=1).clamp(min(self.least, most), most)
        width = 1
        while width < 2 * most:
            rows = ((counts <= width) & (2 * counts > width)).nonzero()[:, 0]
            if len(rows):
                yield rows, columns[rows, : min(width, most)]
            width *= 2


# After a few tokens language model and predictions have the right one among three nearly always, before hardly ever.
CLOSE, EARLY, FIRST = Look(3.5, 2, 8), Look(5.0, 4, 16), Look(6.0, 8, 32)
# The length up to which it is early.
EARLY_UNTIL = 5


@dataclass(frozen=True)
class Written:
    """The tokens of a sentence, and the log-likelihood ratio of each but the first.

    `doubt` is minus the log-probability of all choices that were made, each among what else could have come next;
    `reach` is how far its coefficients speak for it, if they were compared.
    """

    tokens: tuple[int, ...]
    values: tuple[float, ...]
    doubt: float = 0.0
    reach: Reach = NOT_COMPARED

    @property
    def total(self) -> float:
        return sum(self.values)

    @property
    def best(self) -> Written:
        """The beginning with the largest total: where the evidence ends, so does the sentence."""
        totals = torch.tensor([0.0, *self.values]).cumsum(dim=0)
        end = int(totals.argmax())
        return Written(self.tokens[: end + 1], self.values[:end], self.doubt, self.reach)

    @property
    def end(self) -> int:
        """How many tokens belong to it: as far as its coefficients reach, or, if none were compared, its evidence."""
        return max(2, self.reach.tokens or len(self.best.tokens))

    def with_token(self, token: int, value: float, doubt: float = 0.0) -> Written:
        return Written((*self.tokens, token), (*self.values, value), self.doubt + doubt)


@dataclass(frozen=True)
class Choice:
    """A token that may come next, its log-likelihood ratio, and minus its log-probability among all looked at."""

    token: int
    value: float
    doubt: float


@dataclass(frozen=True)
class Evidence:
    """All that tokens are judged by."""

    model: TextModel
    observed: Observed
    judge: Judge
    reader: BagReader
    bag: Tensor
    usual: Tensor
    """The scores of the bag's tokens after nonsense."""

    def after(
        self, prefixes: Sequence[tuple[int, ...]], log_probs: Tensor, explained: Tensor, look: Look
    ) -> list[list[Choice]]:
        """What may come after each prefix.

        The prefixes are what the reader has just read, and the others what it made of them.
        """
        found: list[list[Choice]] = [[] for _ in prefixes]
        for rows, columns, scores in self.closer(log_probs, explained, look):
            own = log_probs[rows[:, None], columns], explained[rows[:, None], columns]
            values = self.judge(scores, self.usual[columns], *own)
            # A token twice in a row has nearly the state of the first, so it would fit wherever that does.
            last = torch.tensor([prefixes[row][-1] for row in rows.tolist()], device=self.bag.device)[:, None]
            looped = (self.bag[columns] == last) & (own[0] < math.log(TWICE))
            values = values.masked_fill(looped, float("-inf"))
            doubts = -values.log_softmax(dim=1).nan_to_num(nan=float("-inf"))
            for row, *of_row in zip(
                rows.tolist(), self.bag[columns].tolist(), values.tolist(), doubts.tolist(), strict=True
            ):
                found[row] = [Choice(*each) for each in zip(*of_row, strict=True) if each[1] > float("-inf")]
        return found

    def closer(self, log_probs: Tensor, explained: Tensor, look: Look) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """The columns that are looked at after what the reader has read, and their scores, row by row.

        They are (rows), (rows, columns) and (rows, columns, spots).
        """
        for alike, columns in look.at(self.judge.without_states(log_probs, explained)):
            for some in torch.arange(len(alike)).split(max(1, AT_ONCE // columns.shape[1])):
                cache = copy.deepcopy(self.reader.cache)
                cache.batch_select_indices(alike[some])
                states = continued(self.model, self.observed.background.spots, cache, self.bag[columns[some]])
                yield alike[some], columns[some], self.observed.scores(states)


# How far the coefficients of sentences speak for them.
Compare = Callable[[Sequence[tuple[int, ...]]], Sequence[Reach]]


def search(
    evidence: Evidence,
    openings: Sequence[Written],
    beams: int,
    fewest: int,
    length: int,
    budget: Budget,
    compare: Compare | None = None,
    close: Look = CLOSE,
    show: Callable[[Sequence[int]], None] = lambda tokens: None,
) -> list[list[Written]]:
    """Sentences with one of these openings, all equally long, that the evidence speaks for.

    `fewest` openings are not halved. Of each opening all that ended somewhere and all that were compared, best first,
    and openings in the order of their best.
    """
    alive = list(openings)
    if not alive:
        return []
    given = len(alive[0].tokens)
    ended: dict[tuple[int, ...], list[Written]] = defaultdict(list)
    reached: dict[tuple[int, ...], list[float]] = defaultdict(list)
    log_probs, explained = evidence.reader.first(torch.tensor([s.tokens for s in alive], device=evidence.bag.device))
    for size in range(given, length):
        if budget.tick():
            break
        choices = evidence.after(
            [sentence.tokens for sentence in alive], log_probs, explained, EARLY if size < EARLY_UNTIL else close
        )
        picked = _pick(alive, choices, beams, given)
        grown = [sentence for _, sentence in picked]
        if not grown:
            break
        better = _better_half(grown, given, fewest) if size + 1 in HALVED_AT else None
        if compare is not None and size + 1 in COMPARED_AT:
            looked = _compared(grown, given, compare)
            for opening, own in looked.items():
                ended[opening] += own
                reached[opening].append(max(sentence.reach.value for sentence in own))
            better = _promising(grown, given, reached, fewest // (2 if size + 1 == COMPARED_AT[0] else 4))
        going = []
        for number, sentence in enumerate(grown):
            opening = sentence.tokens[:given]
            if sentence.best.total - sentence.total < GIVE_UP and (better is None or opening in better):
                going.append(number)
            else:
                ended[opening].append(sentence)
        alive = [grown[n] for n in going]
        if not alive:
            break
        show(max(alive, key=lambda sentence: sentence.total).tokens)
        rows = torch.tensor([picked[n][0] for n in going], device=evidence.bag.device)
        tokens = torch.tensor([sentence.tokens[-1] for sentence in alive], device=evidence.bag.device)
        log_probs, explained = evidence.reader.further(rows, tokens)
    for sentence in alive:
        ended[sentence.tokens[:given]].append(sentence)
    ordered = [sorted(own, key=_strength, reverse=True) for own in ended.values()]
    return sorted(ordered, key=lambda own: _strength(own[0]), reverse=True)


def _compared(grown: Sequence[Written], given: int, compare: Compare) -> dict[tuple[int, ...], list[Written]]:
    """The surest sentences of every opening, with how far their coefficients reach."""
    surest: dict[tuple[int, ...], list[Written]] = defaultdict(list)
    for sentence in sorted(grown, key=lambda sentence: sentence.doubt):
        own = surest[sentence.tokens[:given]]
        if len(own) < COMPARED:
            own.append(sentence)
    asked = [sentence for own in surest.values() for sentence in own]
    reaches = iter(compare([sentence.tokens for sentence in asked]))
    return {opening: [replace(each, reach=next(reaches)) for each in own] for opening, own in surest.items()}


def _promising(
    grown: Sequence[Written], given: int, reached: Mapping[tuple[int, ...], Sequence[float]], count: int
) -> set[tuple[int, ...]]:
    """The openings that are among the best by evidence or by coefficients, without those that came to an end.

    Evidence favours sentences that strayed into another, coefficients those whose tokens are rare.
    """
    totals: dict[tuple[int, ...], float] = {}
    for sentence in grown:
        opening = sentence.tokens[:given]
        totals[opening] = max(sentence.total, totals.get(opening, sentence.total))
    going = [
        opening
        for opening in totals
        if len(reached[opening]) <= STALLED or max(reached[opening][-STALLED:]) > max(reached[opening][:-STALLED])
    ]
    by_total = sorted(going, key=totals.__getitem__, reverse=True)[:count]
    by_reach = sorted(going, key=lambda opening: reached[opening][-1], reverse=True)[:count]
    return {*by_total, *by_reach}


def _strength(sentence: Written) -> tuple[float, float]:
    """Sentences whose coefficients reach far come first, then those with most evidence."""
    return sentence.reach.value, sentence.best.total


def likely_openings(evidence: Evidence, first: Mapping[int, float], count: int, pairs: int) -> list[Written]:
    """The first three tokens of so many sentences, best first; of those that differ in the first only, the best.

    `first` are first tokens with log-probabilities; nothing but what follows shows which was there. `pairs` of first
    and second tokens are looked at with a third.
    """
    bag = evidence.bag
    ids = torch.tensor(list(first), device=bag.device)
    # After a first token language model and predictions are blind, and only states tell.
    everywhere = Look(float("inf"), len(bag), len(bag))
    choices = evidence.after([(token,) for token in first], *evidence.reader.first(ids[:, None]), everywhere)
    weight = float(evidence.judge.few[0])
    of_second: dict[int, list[tuple[float, int, int]]] = defaultdict(list)
    for row, (token, prior) in enumerate(first.items()):
        for choice in choices[row]:
            of_second[choice.token].append((choice.value + weight * prior, row, token))
    both = sorted(
        (value, row, token, second)
        for second, own in of_second.items()
        for value, row, token in sorted(own, reverse=True)[:PAIRS_OF_ONE]
    )[-pairs:]
    if not both:
        return []
    begun = [Written((token, second), (value,)) for value, _, token, second in both]
    rows = torch.tensor([row for _, row, _, _ in both], device=bag.device)
    seconds = torch.tensor([second for *_, second in both], device=bag.device)
    thirds = evidence.after([pair.tokens for pair in begun], *evidence.reader.further(rows, seconds), FIRST)
    likeliest: dict[tuple[int, ...], Written] = {}
    for pair, own in zip(begun, thirds, strict=True):
        for choice in own:
            opening = pair.with_token(choice.token, choice.value)
            after = opening.tokens[1:]
            if after not in likeliest or opening.total > likeliest[after].total:
                likeliest[after] = opening
    best_openings = sorted(likeliest.values(), key=lambda opening: opening.total, reverse=True)[:count]
    # First states look all alike, so that two tokens after them say little: what comes next decides.
    return [Written(opening.tokens, (0.0,) * (OPENING - 1)) for opening in best_openings]


def _better_half(alive: Sequence[Written], given: int, fewest: int) -> set[tuple[int, ...]]:
    """The openings whose best sentence has more evidence than that of the others."""
    best: dict[tuple[int, ...], float] = {}
    for sentence in alive:
        opening = sentence.tokens[:given]
        best[opening] = max(sentence.total, best.get(opening, sentence.total))
    kept = max((len(best) + 1) // 2, min(fewest, len(best)))
    return set(sorted(best, key=best.__getitem__, reverse=True)[:kept])


def _pick(
    alive: Sequence[Written], choices: Sequence[Sequence[Choice]], beams: int, given: int
) -> list[tuple[int, Written]]:
    """The continuations with the least doubt, with the rows they continue; openings that are alive share the places.

    By doubt and not by total: a beam that strays into another sentence of the batch finds as much evidence there, and
    more than a beam that goes on with a rare word.
    """
    options: dict[tuple[int, ...], list[tuple[int, Written]]] = defaultdict(list)
    for row, sentence in enumerate(alive):
        looping = loops(sentence.tokens)
        options[sentence.tokens[:given]] += [
            (row, sentence.with_token(choice.token, choice.value, choice.doubt))
            for choice in choices[row]
            if choice.token not in looping
        ]
    places = min(MOST_OF_ONE, max(LEAST_OF_ONE, beams // max(1, len(options))))
    picked: list[tuple[int, Written]] = []
    for of_one in options.values():
        best: dict[tuple[int, ...], tuple[int, Written]] = {}
        for option in sorted(of_one, key=lambda each: each[1].doubt):
            best.setdefault(option[1].tokens[-ALIKE_IN:], option)
        picked += list(best.values())[:places]
    return picked


def distinct(sentences: Sequence[Written]) -> list[Written]:
    """Of sentences that share runs of tokens the best, best first."""
    kept: list[Written] = []
    taken: set[tuple[int, ...]] = set()
    for sentence in sorted(sentences, key=_strength, reverse=True):
        own = runs(sentence.best.tokens)
        if not own & taken and len(sentence.best.tokens) > 1:
            kept.append(sentence)
            taken |= own
    return kept


def loops(tokens: Sequence[int]) -> set[int]:
    """The tokens after which a sentence would end in the same run twice.

    >>> sorted(loops([1, 2, 3, 1, 2])), sorted(loops([5, 6, 5])), loops([1, 2, 3, 4])
    ([3], [6], set())
    """
    return {
        tokens[-size]
        for size in range(2, LONGEST_LOOP + 1)
        if len(tokens) >= 2 * size - 1 and tokens[-(2 * size - 1) : -size] == tokens[-(size - 1) :]
    }


def runs(tokens: Sequence[int]) -> set[tuple[int, ...]]:
    """All runs of tokens by which sentences are told apart.

    >>> sorted(runs([1, 2, 3, 4, 5]))
    [(1, 2, 3, 4), (2, 3, 4, 5)]
    """
    return {tuple(tokens[n : n + SAME]) for n in range(max(1, len(tokens) - SAME + 1))}
