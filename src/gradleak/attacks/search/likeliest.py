"""The likeliest sentence behind a noisy update: tokens are exchanged and moved until nothing else is likelier.

The head of a classifier shows the state that it read a sentence from, far above noise that hides nearly all else.
Sentences are judged by how likely they make the head's gradient, which takes a forward pass, and the best of them by
the whole update. A token that is alone in a sentence has a state of its own, and those of a sentence's tokens are
like the sentence's: that tells which tokens are worth a try. While the search is hot a language prior counts beside
the likelihood, so that it does not lose itself in nonsense that happens to fit; in the end it does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from gradleak.attacks.evidence.likelihood import TOKENS_AT_ONCE, Batches, Likelihood
from gradleak.attacks.search.explained import explained
from gradleak.core.budget import Budget
from gradleak.models.text import TextModel
from gradleak.priors.ngram import NgramPrior

# The tokens that are tried at all: those with the likest states, and those that are frequent.
LIKE, FREQUENT = 600, 800
# Of both, how many are tried at other places too than that of the token that they replace.
USUAL = 80
# Tokens tried instead of one: there and elsewhere by the prior and their own evidence together, there by that alone.
EXPECTED, ELSEWHERE, LIKEST = 28, 12, 6
# In the end more are.
WIDE = 128
# What a standard deviation of likeness counts beside a nat of the prior; beyond the limit it says no more.
EVIDENCE, CLEAR = 2.0, 8.0
# Where no single token is better: the next best that are tried in pairs, at each place and together.
NEAR, PAIRS = 8, 120
# Rows of the token embedding count by how many standard deviations beyond this they are larger than noise.
USUAL_ROW = 2.0
# Orders tried at once: those that the prior expects; in the end more.
ORDERS, ALL_ORDERS = 40, 250
# Nats that the whole update is worth beside the prior, from hot to cold.
HEATS = (300.0, 1000.0, 3000.0)
# Sweeps over all places at one heat, at most.
SWEEPS = 3
# Starts, and within how many standard deviations of the truth's likelihood no other is needed.
STARTS, SURE = 2, 4.0
# Of the likeliest by the head, how many are judged by the whole update.
JUDGED = 64
# The same when the time is over.
LAST_JUDGED = 8
# Rows of random words whose likelihood stands for guessing.
RANDOM = 8


@dataclass(frozen=True)
class Likely:
    """A sentence's tokens, the share of the head's gradient beyond random words that it explains, and the
    probability that it is right if one of those is that were compared."""

    tokens: list[int]
    explained: float
    posterior: float


class LikeliestSearch:
    """The search for the sentence of one update, of known length and label."""

    def __init__(
        self,
        model: TextModel,
        tensors: Mapping[str, Tensor],
        sigma: float,
        *,
        length: int,
        target: Tensor,
        prior: NgramPrior | None,
        any_size: bool,
        budget: Budget,
    ) -> None:
        """`target` is what the task learns of the sentence, (1,)."""
        self.model, self.prior, self.budget, self.target = model, prior, budget, target
        names = head_names(model, tensors)
        self.head = Likelihood(model, tensors, sigma, parameters=names, any_size=any_size, budget=budget)
        self.whole = Likelihood(model, tensors, sigma, any_size=any_size)  # a few guesses, when the time may be over
        self.places = range(length - len(model.prefix) - len(model.suffix))
        squares = sum(float(tensors[name].double().square().sum()) for name in names)
        count = sum(tensors[name].numel() for name in names)
        # What the truth's likelihood is on average, and how far it is off that.
        self.expected, self.spread = (squares / sigma**2 - count) / 2, (count / 2) ** 0.5
        self.known: dict[tuple[int, ...], float] = {}
        self._weigh(tensors, sigma, names)
        # What random words explain.
        self.guessing = float(self.head.values(self._batches(self._random(RANDOM))).mean())

    def _weigh(self, tensors: Mapping[str, Tensor], sigma: float, names: Sequence[str]) -> None:
        """Choose the tokens to be tried, and how much speaks for each."""
        tokens = self.model.text_tokens.nonzero()[:, 0]
        evidence = self._likeness(tensors, names)
        table = tensors.get(self.model.adapter.parameter_of(self.model.adapter.token_embedding))
        if table is not None and not self.model.goal.predicts_tokens:
            rows = table.to(evidence)[tokens].square().sum(dim=1) / sigma**2 - table.shape[1]
            evidence = evidence + (rows / (2 * table.shape[1]) ** 0.5 - USUAL_ROW).clamp(0, CLEAR)
        frequent = [] if self.prior is None else self.prior.frequent
        common = torch.tensor(frequent, dtype=torch.long, device=tokens.device)
        common = torch.searchsorted(tokens, common[self.model.text_tokens[common]][:FREQUENT])
        pool = torch.cat([evidence.topk(min(LIKE, len(tokens))).indices, common]).unique()
        self.tokens, self.evidence = tokens[pool], EVIDENCE * evidence[pool].clamp_max(CLEAR)
        # Those of them that are tried anywhere.
        few = torch.cat([evidence.topk(min(USUAL, len(tokens))).indices, common[:USUAL]])
        self.usual = torch.isin(pool, few).nonzero()[:, 0]

    def _likeness(self, tensors: Mapping[str, Tensor], names: Sequence[str]) -> Tensor:
        """How like the state that the head saw every single token's is; nothing where it saw several states."""
        alone = states_alone(self.model, self.head, self.target)
        count = int(self.model.text_tokens.sum())
        seen = [tensors[n] for n in names if tensors[n].dim() == 2 and tensors[n].shape[1] == alone.shape[1]]
        if not seen or len(alone) != count:
            return torch.zeros(count, device=alone.device)
        # The gradient of a matrix that saw one state has that direction alone.
        direction = torch.linalg.svd(seen[0].to(alone), full_matrices=False).Vh[0]
        likeness = F.normalize(alone, dim=1) @ direction
        return standardised(likeness * likeness.mean().sign())

    def begin(self, generator: torch.Generator) -> None:
        """One sweep from a drawn start, to see how high this leads."""
        self._settle(self._drawn(generator), HEATS[0], 1, generator)

    def run(self, starts: Iterable[Sequence[int]], generator: torch.Generator) -> None:
        """Climb from the given starts, and from tokens with much evidence while nothing explains the update."""
        given = [tuple(start) for start in starts if len(start) == len(self.places)]
        for number in range(max(STARTS, len(given))):
            now = given[number] if number < len(given) else self._drawn(generator)
            for heat in (*HEATS, None):
                now = self._settle(now, heat, SWEEPS, generator)
            if self.sure or self.budget.over:
                break

    @property
    def reached(self) -> float:
        """The best likelihood so far, by the head."""
        return max(self.known.values(), default=float("-inf"))

    @property
    def sure(self) -> bool:
        """Whether the best so far explains the head's gradient as well as the truth would."""
        return self.reached > self.expected - SURE * self.spread

    def best(self) -> Likely:
        """The likeliest of all by the whole update, and of the orders of its tokens."""
        judged: dict[tuple[int, ...], float] = {}

        def judge(rows: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
            most = LAST_JUDGED if self.budget.over else JUDGED
            near = sorted(rows, key=self.known.__getitem__, reverse=True)[:most]
            new = [row for row in near if row not in judged]
            if new:
                judged.update(zip(new, self.whole.values(self._batches(new)).tolist(), strict=True))
            return max(judged, key=judged.__getitem__)

        top, before = judge(self.known), None
        while top != before and not self.budget.tick():
            before = top
            orders = self._expected(self._orders(top), None)
            self._value(orders)
            top = judge(orders)
        missing, guessing = (max(0.0, self.expected - value) for value in (self.known[top], self.guessing))
        share = explained(max(0.0, missing - SURE * self.spread), guessing)
        return Likely(list(top), share, float(torch.tensor(list(judged.values())).double().softmax(dim=0).max()))

    # --- climbing ---------------------------------------------------------------------------------

    def _settle(
        self, now: tuple[int, ...], heat: float | None, sweeps: int, generator: torch.Generator
    ) -> tuple[int, ...]:
        """Exchange and move tokens until nothing is better at this heat."""
        for _ in range(sweeps):
            before = now
            for place in torch.randperm(len(self.places), generator=generator).tolist():
                now = self._better(now, self._exchanges(now, place, heat), heat)
            now = self._better(now, self._expected(self._orders(now), heat), heat)
            if now == before:
                now = self._better(now, self._pairs(now, heat), heat)
            if now == before:
                break
        return now

    def _better(self, now: tuple[int, ...], tried: Sequence[tuple[int, ...]], heat: float | None) -> tuple[int, ...]:
        """The best of what is tried and what is, by likelihood and, while it is hot, the prior."""
        if self.budget.tick():
            return now
        every = [now, *tried]
        return every[int(self._scores(every, heat).argmax())]

    def _scores(self, rows: Sequence[tuple[int, ...]], heat: float | None) -> Tensor:
        scores = torch.tensor(self._value(rows), dtype=torch.float64)
        if heat is None or self.prior is None:
            return scores
        return scores * (heat / max(self.expected, 1.0)) + self._fluency(rows)

    def _exchanges(self, now: tuple[int, ...], place: int, heat: float | None) -> list[tuple[int, ...]]:
        """Another token instead of one, there or, while the others move up, anywhere."""
        rest = (*now[:place], *now[place + 1 :])
        there = self._insertions(rest, place, self.tokens, self.evidence)
        gaps = [gap for gap in self.places if gap != place]
        few, usual = self.tokens[self.usual], self.evidence[self.usual]
        anywhere = [each for gap in gaps for each in self._insertions(rest, gap, few, usual)]
        chosen = [
            *sorted(there, reverse=True)[: WIDE if heat is None else EXPECTED],
            *sorted(anywhere, reverse=True)[:ELSEWHERE],
            *[there[number] for number in self.evidence.topk(min(LIKEST, len(there))).indices.tolist()],
        ]
        return list(dict.fromkeys((*rest[:gap], token, *rest[gap:]) for _, gap, token in chosen))

    def _insertions(
        self, rest: tuple[int, ...], gap: int, tokens: Tensor, evidence: Tensor
    ) -> list[tuple[float, int, int]]:
        """How much evidence and prior speak for each token in a gap, the gap, and the token."""
        scores = evidence.cpu().double()
        if self.prior is not None:
            scores = scores + torch.from_numpy(self.prior.insertions(rest, gap, tokens.cpu().numpy()))
        return [(score, gap, token) for score, token in zip(scores.tolist(), tokens.tolist(), strict=True)]

    def _pairs(self, now: tuple[int, ...], heat: float | None) -> list[tuple[int, ...]]:
        """Two tokens exchanged at once, each for one that is nearly as good there alone."""
        apart = {row: [place for place in self.places if row[place] != now[place]] for row in self.known}
        single = [row for row, places in apart.items() if len(places) == 1]
        if not single:
            return []
        scores = dict(zip(single, self._scores(single, heat).tolist(), strict=True))
        ranked = sorted(single, key=scores.__getitem__, reverse=True)
        near = [[row for row in ranked if apart[row] == [place]][:NEAR] for place in self.places]
        both = [
            (
                scores[one] + scores[other],
                tuple(b if b != old else a for a, b, old in zip(one, other, now, strict=True)),
            )
            for first, ones in enumerate(near)
            for others in near[first + 1 :]
            for one in ones
            for other in others
        ]
        return [row for _, row in sorted(both, reverse=True)[:PAIRS]]

    def _orders(self, now: tuple[int, ...]) -> list[tuple[int, ...]]:
        """Two tokens exchanged, or some in a row moved."""
        found: dict[tuple[int, ...], None] = {}
        for i in self.places:
            for j in self.places[i + 1 :]:
                swapped = list(now)
                swapped[i], swapped[j] = now[j], now[i]
                found[tuple(swapped)] = None
                # Moving tokens forwards moves those behind them back, so one direction gives all.
                for k in range(j + 1, len(now) + 1):
                    found[(*now[:i], *now[j:k], *now[i:j], *now[k:])] = None
        found.pop(now, None)
        return list(found)

    def _expected(self, rows: Sequence[tuple[int, ...]], heat: float | None) -> Sequence[tuple[int, ...]]:
        """Those that the prior expects most, in the end more of them."""
        most = ALL_ORDERS if heat is None else ORDERS
        if self.prior is None or len(rows) <= most:
            return rows
        return [rows[number] for number in self._fluency(rows).topk(most).indices.tolist()]

    def _fluency(self, rows: Sequence[tuple[int, ...]]) -> Tensor:
        assert self.prior is not None
        return -self.prior.nll(rows).double().cpu() * (len(self.places) + 1)

    def _drawn(self, generator: torch.Generator) -> tuple[int, ...]:
        """A start: tokens drawn from the likest."""
        likest = self.tokens[self.evidence.topk(min(2 * len(self.places), len(self.tokens))).indices]
        picks = torch.randint(len(likest), (len(self.places),), generator=generator)
        return tuple(likest[picks.to(likest.device)].tolist())

    def _random(self, count: int) -> list[tuple[int, ...]]:
        """Rows of random words."""
        ids, generator = self.model.text_tokens.nonzero()[:, 0].cpu(), torch.Generator().manual_seed(0)
        picks = ids[torch.randint(len(ids), (count, len(self.places)), generator=generator)]
        return [tuple(row) for row in picks.tolist()]

    # --- judging ----------------------------------------------------------------------------------

    def _value(self, rows: Sequence[tuple[int, ...]]) -> list[float]:
        """The head's likelihood under every row, each computed once."""
        new = [row for row in dict.fromkeys(rows) if row not in self.known]
        if new:
            self.known.update(zip(new, self.head.values(self._batches(new)).tolist(), strict=True))
        return [self.known[row] for row in rows]

    def _batches(self, rows: Sequence[tuple[int, ...]]) -> Batches:
        return framed(self.model, rows, self.target)


def framed(model: TextModel, rows: Sequence[Sequence[int]], target: Tensor) -> Batches:
    """Sentences of one length between their special tokens, each a guess at a batch of its own."""
    ids = torch.tensor([[*model.prefix, *row, *model.suffix] for row in rows], device=model.device)[:, None]
    return Batches(ids, torch.ones_like(ids, dtype=torch.bool), target.expand(len(ids), *target.shape))


def head_names(model: TextModel, tensors: Mapping[str, Tensor]) -> list[str]:
    """The parameters of the head that were sent."""
    return [name for name in model.parameters_in(model.sections["head"]) if name in tensors]


def standardised(values: Tensor) -> Tensor:
    return (values - values.mean()) / values.std().clamp_min(1e-12)


# The states of single tokens by the last model that was asked for, in pieces by the number of their first token: they
# take as long as thousands of guesses, so an attack that is cut leaves its pieces to the next.
_alone: dict[tuple[str, ...], dict[int, Tensor]] = {}


def states_alone(model: TextModel, head: Likelihood, target: Tensor) -> Tensor:
    """What the head sees of a sentence of every single token that can stand in a text, (tokens, width)."""
    key = (model.fingerprint, *head.names)
    if key not in _alone:
        _alone.clear()
        _alone[key] = {}
    pieces = _alone[key]
    rows = [[token] for token in model.text_tokens.nonzero()[:, 0].tolist()]
    size = max(1, TOKENS_AT_ONCE // (len(model.prefix) + 1 + len(model.suffix)))
    for first in range(0, len(rows), size):
        if first not in pieces:
            pieces[first] = head.states(framed(model, rows[first : first + size], target)).flatten(1)
    return torch.cat([pieces[first] for first in sorted(pieces)])
