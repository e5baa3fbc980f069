"""Reading a crowded update: sentences are grown and taken out, until what is left is few enough to be exact.

Taking a sentence out is no claim that it was in: of those that were not, what was wrongly subtracted stays behind and
shows as sentences of its own, in the exact recovery of the rest. So a sentence is proved in hindsight, with all
others, when nothing of the update is left.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gradleak.attacks.crowded.attended import attention_shows
from gradleak.attacks.crowded.chains import ALL, Chains, present_tokens
from gradleak.attacks.crowded.evidence import Judges, Reader, Usual, learn
from gradleak.attacks.crowded.growth import OPENING, Grown, grow
from gradleak.attacks.crowded.leverage import leverages, spots_of
from gradleak.attacks.crowded.openings import second_tokens
from gradleak.attacks.crowded.trust import Trust, falls, learned_trust
from gradleak.attacks.crowded.volume import Batches, Products, Volume, watched
from gradleak.attacks.evidence.departures import departures
from gradleak.attacks.exact.decoders import recover_decoder
from gradleak.attacks.film.attribution import Attribution
from gradleak.attacks.film.sentence_bounds import end_tokens
from gradleak.attacks.soft.coefficients import LEAST_TOKENS
from gradleak.attacks.soft.reading import beginnings
from gradleak.attacks.soft.rehearsal import gradient_of
from gradleak.attacks.soft.search import runs
from gradleak.attacks.spans.certify import input_span
from gradleak.attacks.spans.spans import Span
from gradleak.core.budget import Budget
from gradleak.models.text import TextModel
from gradleak.updates.update import Update

# How much the volume must fall for a sentence to be taken out, and for each of its predictions.
LEAST, LEAST_EACH = 6.0, 0.3
# Sentences that are looked at together; by how many the weight of a prediction is found at first.
TOGETHER, WEIGHED = 8, 6
# Ends of a sentence that are tried, how far below the best that speaks for one, and how often others are, so many.
TRIED, BELOW, LONGER, OTHERS = 2, 4.0, 2, 3
# What may be left of every matrix, relative to it, if all sentences are right: rounding leaves far less. Measured on
# smollm2: one sentence of 32 that lacks its full stop leaves 2e-3 of every matrix and 3e-2 of some.
NOTHING_LEFT = 1e-4
# A sentence is told already if this share of its runs is.
TOLD = 0.5
# Rounds of growing, and exact recoveries of what is left in each.
ROUNDS, EXACT = 8, 3
# The share of all sentences that is out before it is looked which tokens are left.
FOLLOWED_FROM = 0.1

Tokens = tuple[int, ...]
# A sentence, how much the volume falls without it, and what it adds to each matrix.
Judged = tuple[Tokens, float, Products]


@dataclass
class Read:
    """The sentences of an update, with how sure each is, and whether together they are all of it.

    `certain` are those of them that are proved each by itself.
    """

    sentences: dict[Tokens, float] = field(default_factory=dict)
    proved: bool = False
    certain: frozenset[Tokens] = frozenset()

    def beside(self, certain: Collection[Tokens]) -> Read:
        """The same with sentences that were proved before and taken out."""
        return Read({**dict.fromkeys(certain, 1.0), **self.sentences}, self.proved, self.certain | set(certain))


class Reading:
    """Reads a full gradient of a causal language model with more tokens than dimensions."""

    def __init__(
        self,
        model: TextModel,
        gradient: Update,
        bag: Sequence[int],
        sentences: int,
        length: int,
        learned: Learned,
        budget: Budget,
        show: Callable[[Sequence[int]], None] = lambda tokens: None,
    ) -> None:
        self.model, self.gradient, self.learned, self.budget, self.show = model, gradient, learned, budget, show
        self.sentences, self.length = sentences, length
        self.names = held(model, gradient.tensors)
        groups = watched(model, gradient.tensors)
        self.batches, self.volume = Batches(model, groups), Volume.of(model, gradient.tensors, groups)
        ends = [token for token in end_tokens(model) if bool(model.text_tokens[token])]
        self.bag = torch.tensor(sorted({*bag, *ends}), device=model.device)
        self.first = beginnings(model, self.bag)
        self.second = second_tokens(model, gradient.tensors, list(self.first), self.bag, learned.prefixes, sentences)
        self.taken = Sums(model, self.names)
        self.found = Read()

    def run(self, keep: Callable[[Read], None]) -> Read:
        """All sentences that can be read; `keep` gets them as they come."""
        for _ in range(ROUNDS):
            before = set(self.volume.taken)
            self._search(keep)
            keep(self.found)
            if self.budget.over or self._finish() or set(self.volume.taken) == before or self._follow(keep):
                break
        return self.found

    def _search(self, keep: Callable[[Read], None]) -> None:
        """Grow sentences in what is left, and take out those that it is smaller without."""
        left = self._left()
        attribution = Attribution(self.model, Update(left, self.gradient.manifest), noise=0.0)
        usual = Usual.of(attribution, self.bag, self.learned.prefixes)
        reader = Reader(attribution, leverages(spots_of(self.model, left), left), self.bag, usual)
        wanted = max(4, self.sentences - len(self.volume.taken))
        begun = Counter(tokens[1] for tokens in self.volume.taken)
        second = {token: count - begun[token] for token, count in self.second.items() if count - begun[token] > 0}
        judges, length = self.learned.judges, self.length - 1
        grown = grow(reader, judges, self.first, second or self.second, wanted, length, self.budget, self.show)
        self._take(grown, keep)

    def _take(self, grown: Sequence[Grown], keep: Callable[[Read], None]) -> None:
        """Take out the sentences without which less is left, those for which most speaks first."""
        told = {run for tokens in self.volume.taken for run in runs(tokens)}
        waiting = _openings(grown)
        for number in range(0, len(waiting), TOGETHER):
            if self.budget.over:
                return
            new = [alike for alike in waiting[number : number + TOGETHER] if _new(alike, told)]
            if not new:
                continue
            if not self.volume.weight:
                self._weigh(waiting)
            for tokens, _, products in sorted(self._best(new), key=lambda each: -each[1]):
                (gain,) = self.volume.gains([products])  # others are out by now
                if gain >= max(LEAST, LEAST_EACH * (len(tokens) - 1)) and tokens not in self.volume.taken:
                    (fall,) = falls(self.volume, [products])
                    self.volume.add(tokens, products)
                    self.found.sentences[tokens] = self.learned.trust.confidence(fall)
                    told |= runs(tokens)
            if self.volume.taken:
                self.volume.reweigh()
            keep(self.found)
            if self.volume.rank_shows or self._first_span() is not None:
                return

    def _weigh(self, waiting: Sequence[Sequence[Grown]]) -> None:
        """Find how much a prediction weighs, by the strongest sentences that have nothing in common."""
        told: set[Tokens] = set()
        strongest: list[Tokens] = []
        for alike in waiting:
            if _new(alike, told) and len(strongest) < WEIGHED * TRIED:
                strongest += _ended(alike)
                told |= runs(alike[0].best.tokens)
        self.volume.weigh(self.batches.products(strongest))

    def _best(self, waiting: Sequence[Sequence[Grown]]) -> list[Judged]:
        """Of sentences that begin alike the one without which least is left, for several beginnings at once."""
        best = self._least_left([_ended(alike) for alike in waiting])
        going = list(range(len(best)))
        for _ in range(LONGER):
            # A last token that is read leaves little of itself, so that sentences tend to end too soon.
            others = {number: _other_ends(waiting[number], best[number][0]) for number in going}
            going = [number for number in going if others[number]]
            better = self._least_left([others[number] for number in going])
            both = [(number, own) for number, own in zip(going, better, strict=True) if own[1] > best[number][1]]
            for number, own in both:
                best[number] = own
            going = [number for number, _ in both]
        return best

    def _least_left(self, groups: Sequence[Sequence[Tokens]]) -> list[Judged]:
        """Of each group the sentence without which least is left."""
        every = [tokens for group in groups for tokens in group]
        products = self.batches.products(every)
        judged = iter(zip(every, self.volume.gains(products), products, strict=True))
        return [max(itertools.islice(judged, len(group)), key=lambda each: each[1]) for group in groups]

    def _finish(self) -> bool:
        """Exact recovery of what is left; whether that and all that was taken out is the whole update."""
        if not self.volume.rank_shows:
            return False
        for _ in range(EXACT):
            outcome = recover_decoder(self.model, Update(self._left(), self.gradient.manifest), self.budget, _silent)
            if not outcome.sentences or self.budget.over:
                return False
            grown = [tuple(each.tokens) for each in outcome.sentences]
            # What was subtracted wrongly is left behind, and grows there.
            wrong = [t for t in self.volume.taken if any(each[: len(t) - 1] == t[:-1] for each in grown)]
            if not wrong:
                break
            for tokens in wrong:
                self.volume.put_back(tokens)
                self.found.sentences.pop(tokens, None)
        else:
            return False
        if not outcome.complete:
            return False
        right = [tuple(each.tokens) for each in outcome.sentences if each.whole]
        self.found.sentences.update(dict.fromkeys(right, 1.0))
        self.found.proved = self._nothing_left([*self.volume.taken, *right])
        return True

    def _first_span(self) -> Span | None:
        """The span of what the first layer saw of what is left, once that has few different tokens."""
        if len(self.volume.taken) < FOLLOWED_FROM * self.sentences:
            return None
        return input_span(self.model, self._left())

    def _follow(self, keep: Callable[[Read], None]) -> bool:
        """Once few different tokens are left, follow the others from proof to proof; whether all is proved then.

        Of a sentence that was taken out rightly nothing is left, so that tokens of its own are gone, which proves it.
        Of one that was wrong in a single token something is left at every token; it is put back.
        """
        span = self._first_span()
        if span is None:
            return False
        # All tokens are asked: while a batch is crowded, a few of it may be missing in the bag.
        present = set(present_tokens(self.model, span, self.budget))
        wrong = [tokens for tokens in self.volume.taken if len(set(tokens[:-1]) - present) < LEAST_TOKENS]
        for tokens in wrong:
            self.volume.put_back(tokens)
        right = frozenset(self.volume.taken)
        bag = sorted(present.union(*(tokens[:-1] for tokens in wrong)))
        self.found = Read(dict.fromkeys(right, 1.0), certain=right)
        keep(self.found)
        left = self._left()
        if not attention_shows(self.model, left, bag):
            return False
        chains = Chains(self.model, Update(left, self.gradient.manifest), bag, self.length, self.budget, self.show)
        chains.run(lambda so_far: keep(self.found.beside(so_far.proved)))
        self.found = self.found.beside(chains.found.proved)
        followed = list(chains.found.proved)
        for tokens, products in zip(followed, self.batches.products(followed), strict=True):
            self.volume.add(tokens, products)
        weighed = {**dict.fromkeys(right, self.volume.weight), **chains.found.proved}
        self.found.proved = sum(weight * (len(tokens) - 1) for tokens, weight in weighed.items()) > 1 - ALL
        return self.found.proved

    def _nothing_left(self, sentences: Sequence[Tokens]) -> bool:
        left = self._without(sentences)
        whole = self.gradient.tensors
        return all(float(left[n].norm()) <= NOTHING_LEFT * float(whole[n].norm()) for n in self.names)

    def _left(self) -> Mapping[str, Tensor]:
        return self._without(list(self.volume.taken))

    def _without(self, sentences: Sequence[Tokens]) -> Mapping[str, Tensor]:
        """The gradient without these sentences, of the matrices that are looked at."""
        own = self.taken.of(sentences)
        return {name: self.gradient.tensors[name] - self.volume.weight * own[name] for name in self.names}


class Sums:
    """The gradients of sentences, each the sum over its predictions; what was made before is not made again."""

    def __init__(self, model: TextModel, names: Sequence[str]) -> None:
        self.model, self.names = model, names
        parameters = model.parameters()
        self._total = {name: torch.zeros_like(parameters[name]) for name in names}
        self._summed: frozenset[Tokens] = frozenset()

    def of(self, sentences: Collection[Tokens]) -> Mapping[str, Tensor]:
        """The sum of some sentences."""
        wanted = frozenset(sentences)
        for rows, sign in ((wanted - self._summed, 1.0), (self._summed - wanted, -1.0)):
            if rows:
                predicted = sum(len(row) - 1 for row in rows)
                for name, own in gradient_of(self.model, sorted(rows), self.names).items():
                    self._total[name].add_(own, alpha=sign * predicted)
        self._summed = wanted
        return self._total


def _openings(grown: Sequence[Grown]) -> list[list[Grown]]:
    """Sentences that begin alike together, those for which most speaks first."""
    waiting: dict[Tokens, list[Grown]] = defaultdict(list)
    for each in grown:
        if each.best.total > 0:
            waiting[each.tokens[:OPENING]].append(each)
    return list(waiting.values())


def _new(alike: Sequence[Grown], told: Collection[Tokens]) -> bool:
    """Whether most of a sentence is in no other."""
    own = runs(alike[0].best.tokens)
    return sum(run in told for run in own) <= TOLD * len(own)


def _ended(alike: Sequence[Grown]) -> list[Tokens]:
    """Sentences that begin alike with the ends that most speaks for, wherever they are, best first."""
    values: dict[Tokens, float] = {}
    for grown in alike[:TRIED]:
        for tokens, value in grown.whole(OPENING):
            values[tokens] = max(values.get(tokens, float("-inf")), value)
    ranked = sorted(values, key=values.__getitem__, reverse=True)[:TRIED]
    return [tokens for tokens in ranked if values[tokens] >= values[ranked[0]] - BELOW]


def _other_ends(alike: Sequence[Grown], tokens: Tokens) -> list[Tokens]:
    """A sentence with another last token, or with one more, as far as it was grown."""
    found: dict[Tokens, float] = {}
    for grown in alike:
        for ended, value in grown.whole(OPENING):
            other = len(ended) == len(tokens) and ended[:-1] == tokens[:-1] and ended != tokens
            if other or ended[:-1] == tokens:
                found[ended] = max(found.get(ended, float("-inf")), value)
    return sorted(found, key=found.__getitem__, reverse=True)[:OTHERS]


def crowded(model: TextModel, gradient: Update) -> bool:
    """Whether a full, plain gradient has more tokens than its matrices have dimensions."""
    if not model.goal.autoregressive or model.adapter.shared or departures(gradient):
        return False
    groups = watched(model, gradient.tensors)
    if not groups or not spots_of(model, gradient.tensors):
        return False
    volume = Volume.of(model, gradient.tensors, groups)
    return all(bool(whole.any()) for whole in volume.whole) and not volume.rank_shows


@dataclass(frozen=True)
class Learned:
    """What evidence is worth in updates of a kind, and prefixes of public text that are in none of them."""

    judges: Judges
    trust: Trust
    prefixes: Sequence[Sequence[int]]


def learned_in(
    model: TextModel, gradient: Update, rows: Sequence[Sequence[int]], prefixes: Sequence[Sequence[int]], seed: int
) -> Learned | None:
    """What evidence is worth in updates like this one, from the update that rows of public text make."""
    made = gradient_of(model, rows, held(model, gradient.tensors))
    attribution = Attribution(model, Update(made, gradient.manifest), noise=0.0)
    if not attribution.unit:
        return None
    bag = torch.tensor(sorted({token for row in rows for token in row}), device=model.device)
    usual = Usual.of(attribution, bag, prefixes)
    judges = learn(attribution, leverages(spots_of(model, made), made), usual, bag, rows, seed)
    if judges is None:
        return None
    groups = watched(model, made)
    volume = Volume.of(model, made, groups, weight=1 / sum(len(row) - 1 for row in rows))
    return Learned(judges, learned_trust(volume, Batches(model, groups), rows, bag.tolist(), seed), prefixes)


def as_rich(rows: Sequence[Sequence[int]], distinct: int) -> Sequence[Sequence[int]]:
    """As many of some rows as have about so many distinct tokens.

    >>> as_rich([[1, 2], [2, 3], [4, 5, 6], [7, 8]], 5)
    [[1, 2], [2, 3], [4, 5, 6]]
    """
    seen: set[int] = set()
    for number, row in enumerate(rows):
        if len(seen) >= distinct:
            return rows[:number]
        seen |= set(row)
    return rows


def held(model: TextModel, tensors: Mapping[str, Tensor]) -> list[str]:
    """The names of the layers' matrices that an update holds."""
    parts = (part for layer in model.adapter.parts for part in layer.values())
    return list(dict.fromkeys(part.weight_name for part in parts if part.weight_name in tensors))


def _silent(text: str) -> None:
    pass
