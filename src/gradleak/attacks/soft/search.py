"""Sentences of a language model's batch, grown token by token along the evidence of an update.

Beams are shared out among different openings, so that sentences of a batch do not crowd each other out. The language
model and the explained shares choose which tokens are looked at more closely after each prefix; the states of these
decide.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradleak.attacks.film.readers import ModelReader, UpdateReader
from gradleak.attacks.soft.continuations import continued
from gradleak.attacks.soft.directions import Observed
from gradleak.attacks.soft.judge import Judge
from gradleak.core.budget import Budget
from gradleak.models.text import TextModel

# Tokens of an opening.
OPENING = 3
# Pairs of first tokens that are looked at with a third.
PAIRS = 256
# Beams of one opening at most: the true one stands far above the others once it is some tokens long.
MOST_OF_ONE = 16
# Of beams of one opening that end in the same tokens only the best goes on, so that they do not all differ far back.
ALIKE_IN = 3
# Lengths at which the worse half of the openings is given up; their beams go to the others.
HALVED_AT = (5, 6, 8, 11)
# So few openings are not halved.
FEWEST = 6
# A sentence is given up once it has fallen so far below its best.
GIVE_UP = 6.0
# No run of up to so many tokens comes twice in a row: a loop of common tokens fits everywhere.
LONGEST_LOOP = 8
# Sentences that share a run of so many tokens are the same sentence.
SAME = 4
# Tokens that go through the model at once.
AT_ONCE = 2048


@dataclass(frozen=True)
class Written:
    """The tokens of a sentence, and the log-likelihood ratio of each but the first.

    `doubt` is minus the log-probability of all choices that were made, each among what else could have come next.
    """

    tokens: tuple[int, ...]
    values: tuple[float, ...]
    doubt: float = 0.0

    @property
    def total(self) -> float:
        return sum(self.values)

    @property
    def best(self) -> Written:
        """The beginning with the largest total: where the evidence ends, so does the sentence."""
        totals = torch.tensor([0.0, *self.values]).cumsum(dim=0)
        end = int(totals.argmax())
        return Written(self.tokens[: end + 1], self.values[:end], self.doubt)

    def with_token(self, token: int, value: float, doubt: float = 0.0) -> Written:
        return Written((*self.tokens, token), (*self.values, value), self.doubt + doubt)


@dataclass(frozen=True)
class Evidence:
    """All that tokens are judged by."""

    model: TextModel
    observed: Observed
    judge: Judge
    reader: UpdateReader | ModelReader
    bag: Tensor
    usual: Tensor
    """The scores of the bag's tokens after nonsense."""
    look_at: int
    """Tokens after a prefix whose states are looked at."""

    def after(self, prefixes: Sequence[tuple[int, ...]], log_probs: Tensor, shares: Tensor) -> tuple[Tensor, Tensor]:
        """Of each prefix the columns of the bag that are worth a closer look, and their log-likelihood ratios.

        The prefixes are what the reader has just read, and the others what it made of them.
        """
        columns, scores = self.closer(log_probs, shares)
        values = self.judge(scores, self.usual[columns], log_probs.gather(1, columns), shares.gather(1, columns))
        # A token twice in a row has nearly the state of the first, so it would fit wherever that does. Where it did
        # stand twice, what is found lacks one, and is repaired.
        last = torch.tensor([prefix[-1] for prefix in prefixes], device=self.bag.device)[:, None]
        return columns, values.masked_fill(self.bag[columns] == last, float("-inf"))

    def closer(self, log_probs: Tensor, shares: Tensor) -> tuple[Tensor, Tensor]:
        """The columns that are worth a closer look after what the reader has read, and their scores.

        They are (prefixes, columns) and (prefixes, columns, spots).
        """
        rough = self.judge.without_states(log_probs, shares)
        columns = rough.topk(min(self.look_at, len(self.bag)), dim=1).indices
        rows = torch.arange(len(columns), device=self.bag.device)
        parts = []
        for some in rows.split(max(1, AT_ONCE // columns.shape[1])):
            cache = copy.deepcopy(self.reader.cache)
            cache.batch_select_indices(some)
            states = continued(self.model, self.observed.background.spots, cache, self.bag[columns[some]])
            parts.append(self.observed.scores(states))
        return columns, torch.cat(parts)


def search(
    evidence: Evidence,
    openings: Sequence[Written],
    beams: int,
    length: int,
    budget: Budget,
    show: Callable[[Sequence[int]], None] = lambda tokens: None,
) -> list[list[Written]]:
    """Sentences with one of these openings, all equally long, that the evidence speaks for.

    Of each opening all that ended somewhere, best first, and openings in the order of their best, of which none comes
    twice.
    """
    alive = list(openings)
    if not alive:
        return []
    given = len(alive[0].tokens)
    ended: dict[tuple[int, ...], list[Written]] = defaultdict(list)
    log_probs, shares = evidence.reader.first(torch.tensor([s.tokens for s in alive], device=evidence.bag.device))
    for _ in range(given, length):
        if budget.tick():
            break
        columns, values = evidence.after([sentence.tokens for sentence in alive], log_probs, shares)
        picked = _pick(alive, columns, values, evidence.bag, beams, given)
        grown = [sentence for _, sentence in picked]
        if not grown:
            break
        better = _better_half(grown, given) if len(grown[0].tokens) in HALVED_AT else None
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
        log_probs, shares = evidence.reader.further(rows, tokens)
    for sentence in alive:
        ended[sentence.tokens[:given]].append(sentence)
    ordered = {own[0]: own for own in (sorted(each, key=_strength, reverse=True) for each in ended.values())}
    return [ordered[sentence] for sentence in distinct(list(ordered))]


def _strength(sentence: Written) -> float:
    return sentence.best.total


def likely_openings(evidence: Evidence, first: Mapping[int, float], count: int) -> list[Written]:
    """The first three tokens of so many sentences, best first; of those that differ in the first only, the best.

    `first` are first tokens with log-probabilities; nothing but what follows shows which was there.
    """
    bag = evidence.bag
    prior = torch.tensor(list(first.values()))
    ids = torch.tensor(list(first), device=bag.device)
    # After a first token language model and shares are blind, and only states tell.
    everywhere = replace(evidence, look_at=len(bag))
    columns, values = everywhere.after([(token,) for token in first], *evidence.reader.first(ids[:, None]))
    totals = values + evidence.judge.few[0] * prior[:, None].to(values)
    best = totals.flatten().topk(min(PAIRS, int(totals.isfinite().sum())))
    rows, places = best.indices // columns.shape[1], best.indices % columns.shape[1]
    pairs = [
        Written((int(ids[row]), int(bag[columns[row, place]])), (float(totals[row, place]),))
        for row, place in zip(rows.tolist(), places.tolist(), strict=True)
    ]
    if not pairs:
        return []
    tokens = torch.tensor([pair.tokens[1] for pair in pairs], device=bag.device)
    wider = replace(evidence, look_at=2 * evidence.look_at)
    columns, values = wider.after([pair.tokens for pair in pairs], *evidence.reader.further(rows, tokens))
    likeliest: dict[tuple[int, ...], Written] = {}
    for number, pair in enumerate(pairs):
        for column, value in zip(columns[number].tolist(), values[number].tolist(), strict=True):
            opening = pair.with_token(int(bag[column]), value)
            after = opening.tokens[1:]
            if value > float("-inf") and (after not in likeliest or opening.total > likeliest[after].total):
                likeliest[after] = opening
    best_openings = sorted(likeliest.values(), key=lambda opening: opening.total, reverse=True)[:count]
    # First states look all alike, so that two tokens after them say little: what comes next decides.
    return [opening_of(opening) for opening in best_openings]


def opening_of(sentence: Written) -> Written:
    """The opening that a sentence grew from, with nothing that speaks for or against it."""
    return Written(sentence.tokens[:OPENING], (0.0,) * (OPENING - 1))


def _better_half(alive: Sequence[Written], given: int) -> set[tuple[int, ...]]:
    """The openings whose best sentence has more evidence than that of the others."""
    best: dict[tuple[int, ...], float] = {}
    for sentence in alive:
        opening = sentence.tokens[:given]
        best[opening] = max(sentence.total, best.get(opening, sentence.total))
    kept = max((len(best) + 1) // 2, min(FEWEST, len(best)))
    return set(sorted(best, key=best.__getitem__, reverse=True)[:kept])


def _pick(
    alive: Sequence[Written], columns: Tensor, values: Tensor, bag: Tensor, beams: int, given: int
) -> list[tuple[int, Written]]:
    """The continuations with the least doubt, with the rows they continue; openings that are alive share the places.

    By doubt and not by total: a beam that strays into another sentence of the batch finds as much evidence there, and
    more than a beam that goes on with a rare word.
    """
    options: dict[tuple[int, ...], list[tuple[int, Written]]] = defaultdict(list)
    doubts = -values.log_softmax(dim=1).nan_to_num(nan=float("-inf"))
    for row, sentence in enumerate(alive):
        looping = loops(sentence.tokens)
        of_row = zip(columns[row].tolist(), values[row].tolist(), doubts[row].tolist(), strict=True)
        for column, value, doubt in of_row:
            token = int(bag[column])
            if token not in looping and value > float("-inf"):
                options[sentence.tokens[:given]].append((row, sentence.with_token(token, value, doubt)))
    places = min(MOST_OF_ONE, max(1, beams // max(1, len(options))))
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
