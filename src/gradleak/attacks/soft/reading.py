"""Reading an update by soft spans, round by round: what is proved is taken out, and the rest shows more clearly."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gradleak.attacks.exact.decoders import recover_decoder
from gradleak.attacks.film.sentence_bounds import first_tokens
from gradleak.attacks.soft.background import Background
from gradleak.attacks.soft.coefficients import Coefficients, solvable
from gradleak.attacks.soft.continuations import usual_scores
from gradleak.attacks.soft.directions import observed
from gradleak.attacks.soft.endings import NEARLY, Attempt, Endings
from gradleak.attacks.soft.likeness import Reach
from gradleak.attacks.soft.predictions import BagReader, Predictions
from gradleak.attacks.soft.rehearsal import Learned, gradient_of
from gradleak.attacks.soft.search import (
    OPENING,
    PAIRS,
    Evidence,
    Look,
    Written,
    distinct,
    likely_openings,
    runs,
    search,
)
from gradleak.core.budget import Budget
from gradleak.models.text import TextModel
from gradleak.updates.update import Update

# What rounding leaves of an update from which all sentences were taken out, and of a token's coefficients.
NOTHING_LEFT, TOKEN_GONE = 1e-4, 1e-3
# The total log-likelihood ratio, and the mean of a token, from which a sentence that is not proved is given.
LEAST_TOTAL, LEAST_MEAN = 12.0, 1.5
# The same of coefficients, from which it is tried to prove one.
LEAST_REACH = 4.0
# Sentences of exact recovery that are tried; where spans tell nothing, far more fit.
MOST_EXACT = 24
# The tokens that are looked at in sentences that are grown again.
WIDER = Look(6.0, 4, 24)
# Sentences of one opening that are tried with other ends.
TRIED_OF_ONE = 2
# So many in a row that are not proved end a round in which others were: without those the rest shows more clearly.
ENOUGH = 2
# Sentences of a round that are repaired where none is proved as it was found.
REPAIRED = 3
# Openings for every sentence that is left and beside, those that are not halved, those that are tried, and those that
# are grown again.
OPENINGS, FEWEST, TRIED, REGROWN = (48, 64), (6, 8), (1, 4), (1, 2)
# Tokens before where the coefficients reach from which a sentence is grown again.
BACK = 2


@dataclass
class Read:
    """The sentences that were read: proved ones, then others with their evidence."""

    proved: list[tuple[int, ...]] = field(default_factory=list)
    likely: list[tuple[tuple[int, ...], Written]] = field(default_factory=list)
    complete: bool = False


@dataclass(frozen=True)
class SearchSize:
    """How widely sentences are searched for."""

    sentences: int
    beams: int
    groups: int | None
    rounds: int
    length: int
    look: Look

    def of(self, numbers: tuple[int, int], proved: int) -> int:
        """So many for every sentence that is not proved yet, and so many more."""
        return numbers[0] * max(1, self.sentences - proved) + numbers[1]


class Reading:
    """Reads a gradient whose tokens are known: sentences are grown and proved, the proved taken out, and so on."""

    def __init__(
        self,
        model: TextModel,
        gradient: Update,
        bag: Sequence[int],
        background: Background,
        learned: Learned,
        size: SearchSize,
        budget: Budget,
        show: Callable[[Sequence[int]], None],
    ) -> None:
        self.model, self.gradient, self.background, self.learned = model, gradient, background, learned
        self.size, self.budget, self.show = size, budget, show
        self.found, self.left, self.bag = Read(), dict(gradient.tensors), list(bag)
        # Solved for all tokens: what is left of each shows when sentences are taken out.
        self.coefficients = Coefficients(model, self.left, bag) if solvable(model, self.left, bag) else None

    def run(self, keep: Callable[[Read], None]) -> Read:
        """All sentences that soft spans show; `keep` gets them as they come."""
        for _ in range(self.size.rounds):
            new = self._round(keep)
            keep(self.found)
            if not new or self.found.complete or self.budget.over:
                break
        return self.found

    def _round(self, keep: Callable[[Read], None]) -> bool:
        """Search in what is left; whether something new was proved and taken out."""
        seen = observed(self.background, self.left)
        inner = sorted(token for token in self.bag if bool(self.model.text_tokens[token]))
        if seen is None or len(inner) < 2:
            return False
        rest = Update(self.left, self.gradient.manifest)
        predictions = Predictions.of(self.model, self.learned.compared, self.left)
        tokens = torch.tensor(inner, device=self.model.device)
        first = beginnings(self.model, tokens)
        endings = Endings(self.model, predictions, self.learned.judge, tokens, first)
        if self._take_out(self._proofs(endings, [[each] for each in self._within_the_rank(rest)], repair=False)):
            return True
        usual = usual_scores(self.model, seen, tokens, 0)
        evidence = Evidence(self.model, seen, self.learned.judge, BagReader(predictions, tokens), tokens, usual)
        proved = len(self.found.proved)
        groups = self.size.groups or self.size.of(OPENINGS, proved)
        openings = likely_openings(evidence, first, groups, PAIRS * max(1, self.size.sentences - proved))
        strong = self._grown(evidence, openings, endings, keep)
        if self._take_out(self._proofs(endings, strong)):
            return True
        # Nothing was proved: from where the coefficients reach once more, with a look at more tokens after each.
        return self._take_out(self._proofs(endings, self._regrown(evidence, strong)))

    def _regrown(self, evidence: Evidence, strong: Sequence[Sequence[Written]]) -> list[list[Written]]:
        """Sentences that were right up to somewhere, grown again from there, each by itself."""
        again: list[list[Written]] = []
        for of_one in strong[: self.size.of(REGROWN, len(self.found.proved))]:
            if self.budget.over:
                break
            best = of_one[0]
            size = max(OPENING, best.reach.tokens - BACK)
            begun = Written(best.tokens[:size], best.values[: size - 1])
            again += self._search(evidence, [begun], WIDER)
        return sorted(again, key=lambda own: own[0].reach.value, reverse=True)

    def _search(self, evidence: Evidence, openings: Sequence[Written], look: Look) -> list[list[Written]]:
        compared = self.coefficients is not None and self.learned.likeness is not None
        return search(
            evidence,
            openings,
            self.size.beams,
            self.size.of(FEWEST, len(self.found.proved)),
            self.size.length,
            self.budget,
            self._reaches if compared else None,
            look,
            self.show,
        )

    def _grown(
        self, evidence: Evidence, openings: Sequence[Written], endings: Endings, keep: Callable[[Read], None]
    ) -> list[list[Written]]:
        """The sentences that grow from openings, as far as enough speaks for them; all of an opening together."""
        grown = self._search(evidence, openings, self.size.look)
        strong = [of_one for of_one in grown if _worth(of_one[0])][: self.size.of(TRIED, len(self.found.proved))]
        if strong:
            best = distinct([of_one[0] for of_one in strong])
            self.found.likely = [(endings.likeliest(each), each.best) for each in best if sure(each.best)]
            keep(self.found)
        return strong

    def _reaches(self, sentences: Sequence[tuple[int, ...]]) -> list[Reach]:
        """How far the coefficients of sentences speak for them."""
        likeness, coefficients = self.learned.likeness, self.coefficients
        if likeness is None or coefficients is None:
            return [Reach(0.0, 0) for _ in sentences]
        matches = coefficients.matches(sentences)
        return [likeness.reach(match, len(own)) for match, own in zip(matches, sentences, strict=True)]

    def _within_the_rank(self, rest: Update) -> list[Written]:
        """What exact recovery grows: once few tokens are left, their states lie in spans again."""
        outcome = recover_decoder(self.model, rest, self.budget, lambda text: None)
        return [Written(tuple(each.tokens), (1.0,) * (len(each.tokens) - 1)) for each in outcome.sentences][
            :MOST_EXACT
        ]

    def _proofs(
        self, endings: Endings, sentences: Sequence[Sequence[Written]], repair: bool = True
    ) -> list[tuple[tuple[int, ...], float]]:
        """The sentences that are proved, with their weights, at most one of each group.

        Only if none is, those nearly right are repaired, if they are to be.
        """
        if self.coefficients is None:
            return []
        new: dict[tuple[int, ...], float] = {}
        nearly: list[tuple[Written, Attempt]] = []
        failed = 0
        for of_one in sentences:
            if self.budget.over or (new and failed >= ENOUGH):
                break
            best: tuple[Written, Attempt] | None = None
            for sentence in _different(of_one)[:TRIED_OF_ONE]:
                attempt = endings.proved(sentence, self.coefficients)
                if best is None or attempt[1].rank > best[1][1].rank:
                    best = sentence, attempt
                if attempt[1].proved or self.budget.over:
                    break
            if best is None:
                continue
            tokens, match = best[1]
            failed = 0 if match.proved else failed + 1
            if match.proved and tokens not in self.found.proved:
                new[tokens] = match.weight
            elif match.beginning >= NEARLY:
                nearly.append(best)
        if repair and not new:
            nearly.sort(key=lambda pair: pair[1][1].support, reverse=True)
            for sentence, attempt in nearly[:REPAIRED]:
                if new or self.budget.over:
                    break
                tokens, match = endings.repaired(sentence, attempt, self.coefficients)
                if match.proved and tokens not in self.found.proved:
                    new[tokens] = match.weight
        ends = {sentence.tokens[:OPENING]: tokens for sentence, (tokens, _) in nearly}
        self.found.likely = [(ends.get(own.tokens[:OPENING], ids), own) for ids, own in self.found.likely]
        return list(new.items())

    def _take_out(self, new: Sequence[tuple[tuple[int, ...], float]]) -> bool:
        """Subtract proved sentences from what is left, and drop tokens that were theirs alone."""
        if not new or self.coefficients is None:
            return False
        for tokens, weight in new:
            self.left = without(self.model, self.left, tokens, weight)
            self.found.proved.append(tokens)
        self.bag = remaining(self.coefficients.update, self.coefficients.of(self.left), self.bag)
        if self.bag:
            self.coefficients = Coefficients(self.model, self.left, self.bag)
        self.found.complete = _norm(self.left) < NOTHING_LEFT * _norm(self.gradient.tensors)
        self.found.likely = [pair for pair in self.found.likely if not _told(pair[0], self.found.proved)]
        return True


def beginnings(model: TextModel, bag: Tensor) -> dict[int, float]:
    """First tokens with log-probabilities; where tokens carry the space before them, those without one."""
    first = first_tokens(model, bag)
    texts = {token: str(model.tokenizer.decode([token])) for token in first}
    return {token: value for token, value in first.items() if not texts[token][:1].isspace()} or first


def without(
    model: TextModel, tensors: Mapping[str, Tensor], tokens: Sequence[int], weight: float
) -> dict[str, Tensor]:
    """A gradient without what a sentence adds to it: its weight times the gradient of all its predictions."""
    own = gradient_of(model, [tokens], list(tensors))
    return {name: tensor - weight * (len(tokens) - 1) * own[name] for name, tensor in tensors.items()}


def remaining(before: Tensor, now: Tensor, tokens: Sequence[int]) -> list[int]:
    """The tokens of which something is left, by their coefficients before and now, (tokens, numbers).

    >>> remaining(torch.tensor([[1.0], [2.0]]), torch.tensor([[0.0], [2.0]]), [7, 8])
    [8]
    """
    kept = now.norm(dim=1) > TOKEN_GONE * before.norm(dim=1)
    return [token for token, stays in zip(tokens, kept.tolist(), strict=True) if stays]


def _different(sentences: Sequence[Written]) -> list[Written]:
    """Sentences of one opening, without those that are the beginning of one before."""
    kept: list[Written] = []
    for sentence in sentences:
        if not any(each.tokens[: len(sentence.tokens)] == sentence.tokens for each in kept):
            kept.append(sentence)
    return kept


def _worth(sentence: Written) -> bool:
    """Whether enough speaks for a sentence to prove it."""
    return sentence.best.total >= LEAST_TOTAL or sentence.reach.value >= LEAST_REACH


def sure(sentence: Written) -> bool:
    """Whether enough speaks for a sentence that is not proved to give it."""
    return sentence.total >= LEAST_TOTAL and sentence.total >= LEAST_MEAN * max(1, len(sentence.values) - 2)


def _told(tokens: Sequence[int], proved: Sequence[Sequence[int]]) -> bool:
    """Whether a sentence is one that is proved already, or shares a run of tokens with it."""
    return any(bool(runs(tokens) & runs(each)) for each in proved)


def _norm(tensors: Mapping[str, Tensor]) -> float:
    return float(torch.stack([tensor.double().norm() for tensor in tensors.values()]).norm())
