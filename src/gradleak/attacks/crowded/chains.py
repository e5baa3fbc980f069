"""Sentences of a crowded update as chains of tokens that occur once.

Each such token proves the whole beginning before it (`attended.py`). So a sentence is followed from one to the next:
the tokens between two of them are tried, all of them where there is at most one, else those that the language model
and the shares of the update suggest. Where no further one comes, the end is looked for. A whole sentence is proved
by the coefficients of its tokens and taken out, so that more tokens occur once in what is left; soon the rest is few
enough for exact recovery.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gradleak.attacks.crowded.attended import Attended
from gradleak.attacks.crowded.gathering import WIDER, Gathering, longest
from gradleak.attacks.crowded.guesses import Guesses
from gradleak.attacks.exact.decoders import recover_decoder
from gradleak.attacks.exact.places import nearly_full_places
from gradleak.attacks.film.sentence_bounds import end_tokens
from gradleak.attacks.soft.coefficients import LEAST_TOKENS, MISFIT, Coefficients
from gradleak.attacks.soft.reading import beginnings, remaining, without
from gradleak.attacks.spans.candidates import fitting
from gradleak.attacks.spans.certify import input_span, mixed_spans
from gradleak.attacks.spans.spans import Span
from gradleak.core.budget import Budget
from gradleak.models.text import TextModel
from gradleak.updates.update import Update

# Tokens between two that occur once, at most, at first and where that led nowhere: numbers are long. Of the likeliest
# beginnings up to there, so many are also tried with any token between.
BETWEEN, FARTHER, WIDELY = 8, 20, 8
# Tokens between, and beginnings tried so, while beginnings are still gathered; and how often tokens that seem to be
# missing are added meanwhile.
NEARBY, WIDENED = (3, 3), 2
# Ends of one beginning that are tried, and few last tokens of each, more only once a round has proved nothing: of 38
# sentences proved one after the other none needed them. Sentences are compared with the update together, fewer at
# first, since the likeliest is often right.
ENDS, FEW, LAST, AT_FIRST, TOGETHER = 4, 3, 24, 2, 6
# How far off coefficients may be that are not solved for but the likeliest, beside what is expected, and at most:
# less than those of a sentence that lacks its full stop (9e-3 and more).
MISFITS, MOST_MISFIT = 20.0, 2e-3
# Last tokens that are tried where ends do not show, and sentences that are taken out at once; how near a whole number
# the predictions of a batch must be, and what may be left of a token that is gone.
LAST_ONES, AT_ONCE, WHOLE, GONE = 2, 4, 0.2, 5e-3
# What the predictions of all sentences weigh together, to within.
ALL = 1e-3
# States that may be left where it is looked whether they have fewer dimensions: first tokens often share one.
NEARLY_FULL = 1.1
# Rounds in which sentences are followed; what was proved is taken out before the next. That begins when this share of
# the tokens is gone: with fewer all is quicker, and more of them occur once.
ROUNDS, RENEWED = 12, 0.15

Tokens = tuple[int, ...]


@dataclass
class Followed:
    """What was proved of a gradient, with its weights in the mean, and what is left, of which tokens."""

    left: Mapping[str, Tensor]
    bag: list[int]
    proved: dict[Tokens, float] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Whether that is all: the predictions of a batch weigh one together."""
        return self.share > 1 - ALL

    @property
    def share(self) -> float:
        """The share of all predictions that was proved."""
        return sum(weight * (len(tokens) - 1) for tokens, weight in self.proved.items())

    @property
    def states_left(self) -> int | None:
        """How many predictions are left: each weighs the same, one over their number. None before one is known."""
        return round((1 - self.share) / statistics.median(self.proved.values())) if self.proved else None


class Chains:
    """Follows the sentences of a full gradient with more tokens than dimensions."""

    def __init__(
        self,
        model: TextModel,
        gradient: Update,
        bag: Sequence[int],
        length: int,
        budget: Budget,
        show: Callable[[Sequence[int]], None] = lambda tokens: None,
        patience: Budget | None = None,
    ) -> None:
        """Without `patience` there is as much time until a first sentence is proved as for all of them."""
        self.model, self.gradient, self.length, self.show = model, gradient, length, show
        self.budget, self._whole_budget = patience or budget, budget
        self.found = Followed(dict(gradient.tensors), sorted({*bag, *model.prefix}))
        self._anchors: dict[int, Tokens] = {}  # beginnings that were found, by their last tokens
        self._nowhere: set[Tokens] = set()
        self._anything_begins = False
        self._wider = WIDER  # until it is known which candidates were there
        self.ends = [token for token in end_tokens(model) if bool(model.text_tokens[token])]

    def run(self, keep: Callable[[Followed], None]) -> Followed:
        """All sentences that can be proved; `keep` gets them as they come."""
        for _ in range(ROUNDS):
            before = len(self.found.proved)
            self._round(keep)
            if self.budget.over or self._finish(keep) or not self.found.bag:
                break
            if len(self.found.proved) == before:
                if self._anything_begins:
                    break
                self._anything_begins = True
        return self.found

    def _round(self, keep: Callable[[Followed], None]) -> None:
        """Follow all that begins in what is left, and take out what is proved."""
        found = self.found
        view = self._view()
        attended = view.attended
        guesses = Guesses(self.model, Update(found.left, self.gradient.manifest), attended.tokens)
        waiting = view.begun
        seen: set[tuple[int, ...]] = set()
        new: dict[Tokens, float] = {}
        before = view.coefficients.update
        while waiting and not self.budget.tick():
            # The longest first, and last those that led nowhere when more was left.
            begun = {own: tuple(attended.tokens[number] for number in own) for own in waiting}
            sentence = max(begun, key=lambda own: (begun[own] not in self._nowhere, len(own)))
            waiting.remove(sentence)
            tokens = begun[sentence]
            if new and tokens in self._nowhere and attended.ends_show:
                break  # what is left then shows more
            if sentence in seen or any(own[: len(tokens)] == tokens for own in new):
                continue
            seen.add(sentence)
            self._anchors[tokens[-1]] = tokens
            self.show(tokens)
            between = FARTHER if tokens in self._nowhere else BETWEEN
            longer, whole = self._follow(attended, guesses, sentence, between, WIDELY if attended.ends_show else 1)
            waiting += longer
            if longer:
                continue
            proof = self._proved(view.coefficients, guesses, whole, attended.ends_show)
            if proof is None:
                self._nowhere.add(tokens)
                continue
            new[proof[0]] = proof[1]
            self.budget = self._whole_budget  # it leads somewhere
            if not attended.ends_show:
                if len(new) % AT_ONCE == 0 and self._take_out_together(new, view.coefficients):
                    keep(found)
                    break
                continue
            self._take_out(*proof, view.coefficients)
            keep(found)
            gone = len(attended.tokens) - len(remaining(before, view.coefficients.update, attended.tokens))
            if self._rank_shows() or gone > RENEWED * len(attended.tokens):
                break
        if new and not attended.ends_show:
            self._take_out_together(new, view.coefficients)
            keep(found)
        if new:
            inner, now = attended.inner, view.coefficients.of(found.left)
            found.bag = remaining(before[inner], now[inner], [attended.tokens[number] for number in inner])
            self._wider = 1.0
            # Nothing comes back to the query of a first token, which does not say that it is gone.
            found.bag = sorted({*found.bag, *(attended.tokens[own[0]] for own in view.first)})
        self._anchors = {
            last: own
            for last, own in self._anchors.items()
            if set(own) <= set(found.bag) and not any(whole[: len(own)] == own for whole in found.proved)
        }

    def _take_out_together(self, new: Mapping[Tokens, float], coefficients: Coefficients) -> bool:
        """Take out sentences that fit likeliest coefficients, and prove them by tokens of which nothing is left.

        Their predictions weigh the same, one over a whole number, which all of them together show. Whether that
        leaves so few different tokens that the first layer shows which.
        """
        found, before = self.found, coefficients.of(self.gradient.tensors).norm(dim=1)
        weight = statistics.median(new.values())
        weight = 1 / round(1 / weight) if abs(1 / weight - round(1 / weight)) < WHOLE else weight
        left = found.left
        waiting = [tokens for tokens in new if tokens not in found.proved]
        for tokens in waiting:
            left = without(self.model, left, tokens, weight)
        gone = coefficients.of(left).norm(dim=1) < GONE * before
        for tokens in waiting:
            own = {coefficients.tokens[token] for token in tokens[1:-1] if token in coefficients.tokens}
            if sum(bool(gone[number]) for number in own) >= LEAST_TOKENS:
                found.proved[tokens] = weight
            else:
                left = without(self.model, left, tokens, -weight)
        found.left = left
        return input_span(self.model, left) is not None

    def _view(self) -> _View:
        """What is left, as it shows: solved for each token while these are fewer than dimensions, else gathered."""
        model, found = self.model, self.found
        rest = Update(found.left, self.gradient.manifest)
        if len(found.bag) >= model.width and (span := input_span(model, found.left)) is not None:
            found.bag = present_tokens(model, span, self.budget)
        if len(found.bag) < model.width:
            attended = Attended(model, found.left, found.bag, self.length)
            coefficients = Coefficients(model, found.left, found.bag)
            numbers = {token: number for number, token in enumerate(found.bag)}
            begun = longest(_numbered(numbers, self._anchors).values())
            return _View(attended, coefficients, begun + self._openings(attended))
        gathering = self._gathered(rest)
        attended = gathering.attended
        self._anchors = gathering.found
        query = model.adapter.parts[0]["query"]
        misfits = (MISFITS * gathering.queries.off.sqrt()).clamp(MISFIT, MOST_MISFIT)
        coefficients = Coefficients(model, found.left, attended.tokens, query, gathering.queries.of, misfits)
        begun = gathering.beginnings + self._openings(attended, gathering.first) if gathering.good else []
        return _View(attended, coefficients, begun, gathering.first)

    def _gathered(self, rest: Update) -> Gathering:
        """Beginnings in more different tokens than dimensions: those that show, and what follows from these."""
        model, bag = self.model, torch.tensor(self.found.bag, device=self.model.device)
        first = model.prefix[-1:] or beginnings(model, bag)
        gathering = Gathering(model, rest, self.found.bag, self.length, first, self.budget, self._wider)
        gathering.run(_numbered(gathering.numbers, self._anchors))
        for _ in range(WIDENED):
            # A token that was read and is not among the candidates spoils the equations of all others.
            missed = gathering.missed()
            if not missed or self.budget.over:
                break
            anchors = gathering.found
            candidates = [*gathering.numbers, *missed]
            gathering = Gathering(model, rest, candidates, self.length, first, self.budget, wider=1.0)
            gathering.run(_numbered(gathering.numbers, anchors))
        attended, new = gathering.attended, dict[int, tuple[int, ...]]()
        guesses = Guesses(model, rest, attended.tokens)
        tried: set[tuple[int, ...]] = set()
        for _ in range(ROUNDS):
            if new:
                gathering.run(new)
            if not gathering.good:
                break
            waiting = [own for own in gathering.beginnings if own not in tried]
            tried |= set(waiting)
            followed = [self._follow(attended, guesses, own, *NEARBY)[0] for own in waiting]
            new = {longer[0][-1]: longer[0] for longer in followed if len(longer) == 1}
            if not new or self.budget.over:
                break
        return gathering

    def _openings(self, attended: Attended, first: Sequence[tuple[int, ...]] | None = None) -> list[tuple[int, ...]]:
        """Beginnings of two or three tokens of which the last occurs once, whatever the others are."""
        numbers = {token: number for number, token in enumerate(attended.tokens)}
        if self.model.prefix:  # all begin alike
            first = [tuple(numbers[token] for token in self.model.prefix if token in numbers)]
        elif first is None:
            bag = torch.tensor(attended.tokens, device=self.model.device)
            likely = numbers if self._anything_begins else beginnings(self.model, bag)
            first = [(numbers[token],) for token in likely]
        found = [own for sentence in first for own in attended.one_more(sentence)]
        pairs = set(found)
        for sentence in first:
            if self.budget.over:
                break
            found += attended.two_more(sentence, pairs)
        return found

    def _follow(
        self,
        attended: Attended,
        guesses: Guesses,
        sentence: tuple[int, ...],
        between: int,
        widely: int,
    ) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
        """A beginning up to the next token that occurs once, in all ways that pass; else whole ones, likeliest first.

        Of whole sentences the last token, which is only predicted, is not there yet.
        """
        place = len(sentence) - 1
        beams, scores = [sentence], torch.zeros(1)
        whole: list[tuple[int, ...]] = []
        reading = guesses.begin(sentence)
        for _ in range(between):
            if self.budget.over:
                break
            longer = [own for beam in beams for own in attended.one_more(beam)]
            longer = longer or [own for beam in beams[:widely] for own in attended.two_more(beam)]
            if longer:
                return longer, []
            # Where ends do not show, the likeliest may end anywhere.
            whole += [beam for beam in beams if attended.ends(beam, place)] if attended.ends_show else beams[:1]
            if (len(whole) >= ENDS and attended.ends_show) or len(beams[0]) + 2 >= attended.longest:
                break
            beams, scores = reading.grown(beams, scores)
        return [], whole[:ENDS] if attended.ends_show else whole

    def _proved(
        self, coefficients: Coefficients, guesses: Guesses, whole: Sequence[tuple[int, ...]], ends_show: bool
    ) -> tuple[Tokens, float] | None:
        """The sentence that is proved with some last token, of the likeliest, and its weight."""
        most = (LAST if self._anything_begins else FEW) if ends_show else LAST_ONES
        likely = [
            (rank // FEW, number, (*(int(guesses.bag[each]) for each in own), last))
            for number, own in enumerate(whole)
            for rank, last in enumerate(guesses.last_ones(own, self.ends)[:most])
            if ends_show or last in self.ends  # where ends do not show, only what looks like one
        ]
        tried = [own for *_, own in sorted(likely)]  # the likeliest last tokens of all ends first
        starts = [0, *range(AT_FIRST, len(tried), TOGETHER)]
        for start, end in itertools.pairwise([*starts, len(tried)]):
            if self.budget.over:
                break
            some = tried[start:end]
            for own, match in zip(some, coefficients.matches(some), strict=True):
                if match.proved:
                    return own, match.weight
        return None

    def _take_out(self, tokens: Tokens, weight: float, coefficients: Coefficients) -> None:
        self.found.left = without(self.model, self.found.left, tokens, weight)
        self.found.proved[tokens] = weight
        coefficients.update = coefficients.of(self.found.left)

    def _rank_shows(self) -> bool:
        """Whether what is left has fewer states than dimensions, wherever that shows."""
        model, found = self.model, self.found
        if found.states_left is not None and found.states_left > NEARLY_FULL * model.width:
            return False
        return bool(mixed_spans(model, found.left) or nearly_full_places(model, found.left))

    def _finish(self, keep: Callable[[Followed], None]) -> bool:
        """Exact recovery of what is left, if that has become few enough; whether nothing is left then."""
        if not self._rank_shows():
            return False
        found = self.found
        outcome = recover_decoder(
            self.model, Update(dict(found.left), self.gradient.manifest), self.budget, lambda _: None
        )
        coefficients = Coefficients(self.model, found.left, found.bag)
        tried = [tuple(each.tokens) for each in outcome.sentences]
        proofs = zip(tried, coefficients.matches(tried), strict=True)
        new = {own: match.weight for own, match in proofs if match.proved and own not in found.proved}
        found.proved.update(new)
        keep(found)
        if new and not found.complete:
            before = coefficients.update
            for own, weight in new.items():
                found.left = without(self.model, found.left, own, weight)
            found.bag = remaining(before, coefficients.of(found.left), found.bag)
        return found.complete


@dataclass
class _View:
    """Tests of beginnings and of whole sentences, and what is known to begin."""

    attended: Attended
    coefficients: Coefficients
    begun: list[tuple[int, ...]]
    first: list[tuple[int, ...]] = field(default_factory=list)


def _numbered(numbers: Mapping[int, int], anchors: Mapping[int, Tokens]) -> dict[int, tuple[int, ...]]:
    """Beginnings by their last tokens, as numbers of candidates, if all of their tokens are among these."""
    return {
        numbers[last]: tuple(numbers[token] for token in own)
        for last, own in anchors.items()
        if all(token in numbers for token in own)
    }


def present_tokens(model: TextModel, span: Span, budget: Budget) -> list[int]:
    """All tokens that lie in the span of what the first layer saw."""
    every = model.text_tokens.nonzero()[:, 0]
    fits = fitting(model, span, every, 1, budget=budget)[:, 0]
    return sorted({*every[fits].tolist(), *model.prefix})
