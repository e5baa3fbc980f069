"""Sentences of a decoder, grown by the evidence of many layers together, where no single one tells right from wrong.

Weights that are rounded at every local step cover the weakest states in each layer, but not the same ones in all. A
state's distance from a span counts there by how far its logarithm is below those of made-up wrong prefixes, in units
of their spread, and the mean of that over the layers is the state's score. Right states score far below wrong ones.

A few states leave next to nothing anywhere: those from which the model foretold the next token. They are bridged: the
best candidates are kept if a token after them scores clearly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from gradleak.attacks.exact.growing import SIDE_BY_SIDE, Growth, Prefix, Spans
from gradleak.attacks.exact.places import made_up_states
from gradleak.attacks.spans.certify import Certificate
from gradleak.attacks.spans.probe import Probe
from gradleak.attacks.spans.spans import STATE_ROUNDING, Span
from gradleak.models.adapter import Part
from gradleak.models.text import TextModel

# Wrong prefixes that are made up, and places that all candidates are tried at before the best go through the others.
MADE_UP, LENGTH, FIRST = 256, 4, 6
# Candidates of a prefix that go through all places, and those that are tried as a bridge.
SHORTLIST, BRIDGES = 16, 8
# A score so far below those of made-up prefixes is clear if it is also so large a share of what right states have:
# one token off a right prefix, wrong states score low too. Beside the best after the same prefix it takes more. Where
# right states score very low, they do so alike: after 40 steps in fp64 all are within 8 of -31, wrong ones above -16.
CLEAR, SHARE, BESIDE, ALIKE = 4.0, 0.35, 0.5, 14.0
# Tokens that may begin a sentence score so low alone; so many times as many as there are sentences are tried anyway.
LIKELY_START, STARTS = 2.0, 3
# Prefixes that are grown side by side: those with the best scores. If there are more at so many positions, scores no
# longer separate right from wrong.
MOST, CROWDED = 64, 4
# Nor do they where growing prefixes have so many times as many states as the largest span has dimensions.
TOO_MANY = 3
# Sentences whose scores are taken for right where their number is not known.
USUAL_SIZE = 4


class Judge(NamedTuple):
    """A matrix, a basis of the span of what it sees, in fp32, and the map it sees it through."""

    part: Part
    basis: Tensor
    map: Tensor | None

    @classmethod
    def of(cls, part: Part, span: Span) -> Judge:
        return cls(part, span.basis.float(), span.map)

    def logs(self, states: Tensor) -> Tensor:
        """Logarithms of the distances of states from the span, (..., width)."""
        unit = F.normalize(states if self.map is None else states @ self.map.to(states).T, dim=-1)
        basis = self.basis.to(states)
        off = (unit - (unit @ basis.T) @ basis).norm(dim=-1).clamp_min(STATE_ROUNDING)
        return torch.where((unit == 0).all(dim=-1), 0.0, off.log())  # an embedding of zeros is in every span


@dataclass(frozen=True)
class Panel:
    """Judges in the order they run, and the mean and spread of the log distances of wrong states at each."""

    judges: Sequence[Judge]
    means: Tensor
    spreads: Tensor

    @property
    def parts(self) -> list[Part]:
        return [judge.part for judge in self.judges]

    @classmethod
    def of(cls, model: TextModel, judges: Sequence[Judge], tokens: Tensor, start: int, length: int) -> Panel:
        """From prefixes of so many of these tokens in any order, which next to all are wrong."""
        states = made_up_states(model, [judge.part for judge in judges], tokens, start, MADE_UP, length)
        logs = torch.stack([judge.logs(own) for judge, own in zip(judges, states, strict=True)])
        return cls(judges, logs.mean(dim=1), logs.std(dim=1))

    def scores(self, states: Sequence[Tensor]) -> Tensor:
        """The scores of states, (..., width) at each of the first judges."""
        logs = torch.stack([judge.logs(own) for judge, own in zip(self.judges, states, strict=False)])
        shape = (-1, *[1] * (logs.dim() - 1))
        means, spreads = self.means[: len(logs)].view(shape), self.spreads[: len(logs)].view(shape)
        return ((logs - means) / spreads).mean(dim=0)


class Scored(NamedTuple):
    """A token after a prefix, and its score."""

    token: int
    score: float


class JointGrowth(Growth):
    """Grows all sentences of a batch side by side by the scores of a panel."""

    def __init__(
        self, model: TextModel, inputs: Span, judges: Sequence[Judge], positions: range, size: int | None
    ) -> None:
        """`size` is the number of sentences, if known."""
        super().__init__(model, Spans(inputs, ()), positions)
        bag = self.candidates(positions.start)
        bag = bag if len(bag) else self.vocabulary  # nothing will be grown
        self.panel = Panel.of(model, judges, bag, positions.start, LENGTH)
        self.starts = Panel.of(model, judges[:FIRST], self.vocabulary, positions.start, 1)
        self.size, self.limit = size or USUAL_SIZE, -CLEAR
        self._right: list[float] = []
        self._crowded = 0
        self._scores: dict[Prefix, float] = {}  # of the last token of every prefix
        self._begun: set[Prefix] = set()

    def _extend(self, alive: list[Prefix], bag: Tensor, position: int) -> tuple[list[Prefix], list[Prefix]]:
        """Every prefix with every token that scores clearly after it; those that none does after have ended.

        Prefixes that a bridge made longer wait for the others.
        """
        if not len(bag):
            return [], alive
        grown = [prefix for prefix in alive if _next(prefix) > position]
        ended: list[Prefix] = []
        if position == self.positions.start or self.learned:
            grown += self._beginnings(position, bag)
        here = [prefix for prefix in alive if _next(prefix) == position]
        scored = [self._scored(prefix, bag) for prefix in here]
        self._learn([best[0].score for best in scored if best])
        for prefix, best in zip(here, scored, strict=True):
            longer = self._clear(prefix, best) or self._bridged(prefix, best)
            grown += longer
            if not longer and self._stands(prefix):
                ended.append(prefix)
        self._crowded += len(grown) > MOST
        kept = sorted(grown, key=lambda p: self._scores[p])[:MOST]
        states, rank = sum(len(p.tokens) for p in kept), max(len(judge.basis) for judge in self.panel.judges)
        self.overflow = self._crowded > CROWDED or states > TOO_MANY * rank
        return kept, ended

    def _learn(self, best: Sequence[float]) -> None:
        """Note how right states score: like the best of as many prefixes as there are sentences, where clear."""
        self._right += [score for score in sorted(best)[: self.size] if score <= self.limit]
        self.limit = clear_limit(self._right)

    def _stands(self, prefix: Prefix) -> bool:
        """Whether a prefix that nothing continues is a sentence: one token must be a clear beginning."""
        return len(prefix.tokens) > 1 or prefix in self._begun

    def _beginnings(self, position: int, bag: Tensor) -> list[Prefix]:
        """The tokens that may begin a sentence: the next token tells which of them do."""
        scores = self.starts.scores(self._states_after([Prefix(position, ())], bag, self.starts.parts))[0]
        own = {Prefix(position, (int(token),)): float(score) for token, score in zip(bag, scores, strict=True)}
        self._scores.update(own)
        best = sorted(own, key=lambda prefix: own[prefix])
        self._begun |= {prefix for prefix in best if own[prefix] <= min(-CLEAR, BESIDE * own[best[0]])}
        return [p for n, p in enumerate(best) if own[p] <= -LIKELY_START or n < STARTS * self.size]

    def _clear(self, prefix: Prefix, best: Sequence[Scored]) -> list[Prefix]:
        """A prefix with every token that scores clearly after it, also beside the best."""
        limit = min(self.limit, BESIDE * best[0].score) if best else self.limit
        longer = {_longer(prefix, each.token): each.score for each in best if each.score <= limit}
        allowed = {p: score for p, score in longer.items() if self._may_follow(p)}
        self._scores.update(allowed)
        return list(allowed)

    def _bridged(self, prefix: Prefix, best: Sequence[Scored]) -> list[Prefix]:
        """A prefix with two tokens of which only the second scores clearly; not where nothing is known of it yet."""
        if len(set(prefix.tokens)) < 2:
            return []
        near = [_longer(prefix, each.token) for each in best[:BRIDGES]]
        return [
            far
            for each in near
            if self._may_follow(each)
            for far in self._clear(each, self._scored(each, self.candidates(_next(each))))
        ]

    def _may_follow(self, prefix: Prefix) -> bool:
        """Runs have the state of their token alone: a sentence is not taken to begin with one."""
        return self.learned or not (prefix.run or prefix.endless)

    def _scored(self, prefix: Prefix, bag: Tensor) -> list[Scored]:
        """The best tokens of the bag after a prefix, and their scores at all places, best first."""
        parts, portions = self.panel.parts, bag.split(SIDE_BY_SIDE)
        seen = [self._states_after([prefix], some, parts[:FIRST]) for some in portions]
        rough = torch.cat([self.panel.scores(states)[0] for states in seen])
        best = bag[rough.topk(min(SHORTLIST, len(bag)), largest=False).indices]
        scores = self.panel.scores(self._states_after([prefix], best, parts))[0].sort()
        pairs = zip(best[scores.indices].tolist(), scores.values.tolist(), strict=True)
        return [Scored(token, score) for token, score in pairs]

    def unproved(self, prefix: Prefix) -> Certificate:
        """How far a sentence's states are from the spans, and how far they may be, in the geometric mean."""
        states = [own[0] for own in self._states_of(prefix)]
        logs = torch.stack([judge.logs(own) for judge, own in zip(self.panel.judges, states, strict=True)])
        limits = self.panel.means + self.limit * self.panel.spreads
        return Certificate(float((2 * logs.mean()).exp()), float((2 * limits.mean()).exp()), strict=False)

    def _states_of(self, prefix: Prefix) -> list[Tensor]:
        ids = torch.tensor([prefix.tokens], device=self.model.device)
        where = torch.arange(prefix.start, _next(prefix), device=ids.device)[None]
        with torch.no_grad():
            return Probe(self.model, self.panel.parts)(input_ids=ids, mask=torch.ones_like(ids), position_ids=where)


def clear_limit(right: Sequence[float]) -> float:
    """The score that a state must be below to be clear, by those that right ones had so far.

    >>> clear_limit([]), clear_limit([-10.0]), clear_limit([-30.0, -31.0, -34.0])
    (-4.0, -4.0, -17.0)
    """
    usual = -median(right) if right else 0.0
    return -max(CLEAR, SHARE * usual, usual - ALIKE)


def _longer(prefix: Prefix, token: int) -> Prefix:
    return Prefix(prefix.start, (*prefix.tokens, token))


def _next(prefix: Prefix) -> int:
    return prefix.start + len(prefix.tokens)
