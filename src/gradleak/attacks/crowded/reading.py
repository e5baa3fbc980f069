"""Reading a crowded update: sentences are grown and taken out, until what is left is few enough to be exact.

Taking a sentence out is no claim that it was in: of those that were not, what was wrongly subtracted stays behind and
shows as sentences of its own, in the exact recovery of the rest. So a sentence is proved in hindsight, with all
others, when nothing of the update is left.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gradleak.attacks.crowded.evidence import Judges, Reader, labels_along, learn
from gradleak.attacks.crowded.growth import Grown, grow
from gradleak.attacks.crowded.leverage import leverages, spots_of
from gradleak.attacks.crowded.volume import Batches, Products, Volume, watched
from gradleak.attacks.evidence.departures import departures
from gradleak.attacks.exact.decoders import recover_decoder
from gradleak.attacks.film.attribution import Attribution
from gradleak.attacks.film.sentence_bounds import end_tokens
from gradleak.attacks.soft.reading import beginnings
from gradleak.attacks.soft.rehearsal import gradient_of
from gradleak.attacks.soft.search import runs
from gradleak.core.budget import Budget
from gradleak.models.text import TextModel
from gradleak.updates.update import Update

# How much the volume must fall for a sentence to be taken out, and for each of its predictions.
LEAST, LEAST_EACH = 6.0, 1.0
# Sentences by which the weight of a prediction is found, and after how many it is found anew.
WEIGHED, REWEIGHED = 6, 4
# Ends of a sentence that are tried, last tokens that are considered at each place, and how often other ends are.
TRIED, LAST, LONGER = 4, 3, 3
# What may be left of every matrix, relative to it, if all sentences are right: rounding leaves far less. Measured on
# smollm2: one sentence of 32 that lacks its full stop leaves 2e-3 of every matrix and 3e-2 of some.
NOTHING_LEFT = 1e-4
# Tokens by which sentences begin alike.
OPENING = 3
# Rounds of growing, and exact recoveries of what is left in each.
ROUNDS, EXACT = 8, 3

Tokens = tuple[int, ...]


@dataclass
class Read:
    """The sentences of an update, with the fall of the volume by each, and whether together they are all of it."""

    sentences: dict[Tokens, float] = field(default_factory=dict)
    proved: bool = False


class Reading:
    """Reads a full gradient of a causal language model with more tokens than dimensions."""

    def __init__(
        self,
        model: TextModel,
        gradient: Update,
        bag: Sequence[int],
        sentences: int,
        length: int,
        judges: Judges,
        budget: Budget,
        show: Callable[[Sequence[int]], None] = lambda tokens: None,
    ) -> None:
        self.model, self.gradient, self.judges, self.budget, self.show = model, gradient, judges, budget, show
        self.sentences, self.length = sentences, length
        self.names = held(model, gradient.tensors)
        groups = watched(model, gradient.tensors)
        self.batches, self.volume = Batches(model, groups), Volume.of(model, gradient.tensors, groups)
        self.bag = torch.tensor(sorted(bag), device=model.device)
        ends = [token for token in end_tokens(model) if bool(model.text_tokens[token])]
        self.last = torch.tensor(sorted({*bag, *ends}), device=model.device)
        self.found = Read()

    def run(self, keep: Callable[[Read], None]) -> Read:
        """All sentences that can be read; `keep` gets them as they come."""
        for _ in range(ROUNDS):
            before = len(self.volume.taken)
            self._search(keep)
            keep(self.found)
            if self.budget.over or self._finish() or len(self.volume.taken) == before:
                break
        return self.found

    def _search(self, keep: Callable[[Read], None]) -> None:
        """Grow sentences in what is left, and take out those that it is smaller without."""
        left = self._left()
        rest = Update(left, self.gradient.manifest)
        attribution = Attribution(self.model, rest, noise=0.0)
        reader = Reader(attribution, leverages(spots_of(self.model, left), left), self.bag)
        wanted = max(4, self.sentences - len(self.volume.taken))
        first = beginnings(self.model, self.bag)
        grown = grow(reader, self.judges, first, wanted, self.length - 1, self.budget, self.show)
        self._take(attribution, grown, keep)

    def _take(self, attribution: Attribution, grown: Sequence[Grown], keep: Callable[[Read], None]) -> None:
        waiting: dict[Tokens, list[Grown]] = defaultdict(list)
        for each in grown:
            if each.best.total > 0:
                waiting[each.tokens[:OPENING]].append(each)
        told = {run for tokens in self.volume.taken for run in runs(tokens)}
        new = 0
        for alike in waiting.values():
            if self.budget.over:
                break
            if runs(alike[0].best.tokens[1:]) & told:
                continue
            if not self.volume.weight:
                self._weigh(attribution, list(waiting.values()))
            tokens, gain, products = self._best(attribution, alike)
            if gain < max(LEAST, LEAST_EACH * (len(tokens) - 1)):
                continue
            self.volume.add(tokens, products)
            self.found.sentences[tokens] = gain
            told |= runs(tokens[1:])
            new += 1
            if new % REWEIGHED == 0:
                self.volume.reweigh()
                keep(self.found)
                if self.volume.rank_shows:
                    break
        if new:
            self.volume.reweigh()

    def _weigh(self, attribution: Attribution, waiting: Sequence[Sequence[Grown]]) -> None:
        """Find how much a prediction weighs, by the strongest sentences that have nothing in common."""
        told: set[Tokens] = set()
        strongest: list[Tokens] = []
        for alike in waiting:
            own = runs(alike[0].best.tokens[1:])
            if not own & told and len(strongest) < WEIGHED * TRIED:
                strongest += self._ended(attribution, alike)
                told |= own
        self.volume.weigh(self.batches.products(strongest))

    def _best(self, attribution: Attribution, alike: Sequence[Grown]) -> tuple[Tokens, float, Products]:
        """Of sentences that begin alike the one without which least is left, with how much that is."""
        best = self._least_left(self._ended(attribution, alike))
        for _ in range(LONGER):
            # A last token that is read leaves little of itself, so that sentences tend to end too soon.
            others = self._other_ends(attribution, best[0])
            other = self._least_left(others) if others else best
            if other[1] <= best[1]:
                break
            best = other
        return best

    def _least_left(self, sentences: Sequence[Tokens]) -> tuple[Tokens, float, Products]:
        """The sentence without which least is left."""
        products = self.batches.products(sentences)
        return max(zip(sentences, self.volume.gains(products), products, strict=True), key=lambda each: each[1])

    def _other_ends(self, attribution: Attribution, tokens: Tokens) -> list[Tokens]:
        """A sentence with another last token, or with one more."""
        along = self.judges.later.rough(labels_along(attribution, tokens, self.last))
        found = []
        for prefix, values in ((tokens[:-1], along[-2]), (tokens, along[-1])):
            if len(prefix) == self.length:
                continue
            likely = self.last[values.topk(min(LAST, len(values))).indices].tolist()
            found += [(*prefix, token) for token in likely if (*prefix, token) != tokens]
        return found

    def _ended(self, attribution: Attribution, alike: Sequence[Grown]) -> list[Tokens]:
        """Sentences that begin alike with the ends that most speaks for, wherever they are, best first."""
        values: dict[Tokens, float] = {}
        for grown in alike[:TRIED]:
            along = self.judges.later.rough(labels_along(attribution, grown.tokens, self.last))
            totals = list(itertools.accumulate((0.0, *grown.values)))
            for place in range(OPENING, len(grown.tokens) + 1):
                likely = along[place - 1].topk(min(LAST, len(self.last)))
                for value, column in zip(likely.values.tolist(), likely.indices.tolist(), strict=True):
                    ended = (*grown.tokens[:place], int(self.last[column]))
                    values[ended] = max(values.get(ended, float("-inf")), totals[place - 1] + value)
        return sorted(values, key=values.__getitem__, reverse=True)[:TRIED]

    def _finish(self) -> bool:
        """Exact recovery of what is left; whether that and all that was taken out is the whole update."""
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
        self.found.sentences.update(dict.fromkeys(right, 0.0))
        self.found.proved = self._nothing_left([*self.volume.taken, *right])
        return True

    def _nothing_left(self, sentences: Sequence[Tokens]) -> bool:
        left = self._without(sentences)
        whole = self.gradient.tensors
        return all(float(left[n].norm()) <= NOTHING_LEFT * float(whole[n].norm()) for n in self.names)

    def _left(self) -> Mapping[str, Tensor]:
        return self._without(list(self.volume.taken))

    def _without(self, sentences: Sequence[Tokens]) -> Mapping[str, Tensor]:
        """The gradient without these sentences, of the matrices that are looked at."""
        kept = {name: self.gradient.tensors[name] for name in self.names}
        if not sentences:
            return kept
        own = gradient_of(self.model, sentences, self.names)
        predicted = sum(len(tokens) - 1 for tokens in sentences)
        return {name: tensor - self.volume.weight * predicted * own[name] for name, tensor in kept.items()}


def crowded(model: TextModel, gradient: Update) -> bool:
    """Whether a full, plain gradient has more tokens than its matrices have dimensions."""
    if not model.goal.autoregressive or model.adapter.shared or departures(gradient):
        return False
    groups = watched(model, gradient.tensors)
    if not groups or not spots_of(model, gradient.tensors):
        return False
    volume = Volume.of(model, gradient.tensors, groups)
    return all(bool(whole.any()) for whole in volume.whole) and not volume.rank_shows


def learned_in(model: TextModel, gradient: Update, rows: Sequence[Sequence[int]], seed: int) -> Judges | None:
    """What evidence is worth in updates like this one, from the update that rows of public text make."""
    made = gradient_of(model, rows, held(model, gradient.tensors))
    attribution = Attribution(model, Update(made, gradient.manifest), noise=0.0)
    levers = leverages(spots_of(model, made), made)
    return learn(model, attribution, levers, rows, seed) if attribution.unit else None


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


def sure_of(tokens: Sequence[int], gain: float) -> float:
    """How sure a sentence is that is not proved, by how much of each of its predictions is explained."""
    return gain / (gain + len(tokens) - 1) if gain > 0 else 0.5


def held(model: TextModel, tensors: Mapping[str, Tensor]) -> list[str]:
    """The names of the layers' matrices that an update holds."""
    parts = (part for layer in model.adapter.parts for part in layer.values())
    return list(dict.fromkeys(part.weight_name for part in parts if part.weight_name in tensors))


def _silent(text: str) -> None:
    pass
