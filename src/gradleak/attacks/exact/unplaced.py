"""Exact recovery from encoders whose first layer sees a token alike wherever it stands: rotary or relative positions.

No row and no span tells where a token stood, so any token of the batch may stand anywhere, and the search has to
find the order too. Beside flips it exchanges tokens and moves them.
"""

from __future__ import annotations

import functools
import itertools

import torch
from torch import Tensor

from gradleak.attacks.evidence.lengths import shortest_sentence
from gradleak.attacks.exact.companions import Companions
from gradleak.attacks.exact.encoders import EncoderRecovery
from gradleak.attacks.exact.flips import Energy, Frames, flip_gains
from gradleak.attacks.spans.candidates import Choices
from gradleak.attacks.spans.spans import Span
from gradleak.core.budget import Budget
from gradleak.models.text import TextModel

# Below this energy the order is right: on a tiny ModernBERT right sentences had 1e-13, the nearest other 8e-6.
IN_ORDER = 1e-9
# Exchanges, moves and flips of a sentence that are tried in a step: all if there are fewer, otherwise flips by what
# they promise and the rest by chance.
MOST_TRIES = 300
# Starts for every possible length in the first round, and at last. Each takes a while.
FEW_STARTS, MOST_STARTS = 2, 32
# Lengths that are tried together: the rest need not be tried once a sentence is found.
LENGTHS_AT_ONCE = 2
# Tokens that must see the same tokens before these are taken for a sentence.
AGREED = 2
# Starts for every length of such a sentence.
GROUP_STARTS = 8
# A sentence of known tokens is looked for with up to so many (less one) of them repeated.
MOST_REPEATS = 4
# Batches of up to so many sentences of equal length are thought of first where the batch size is not known.
USUAL_SIZE = 4


def search_for(model: TextModel) -> type[EncoderRecovery]:
    """How sentences of an encoder are searched for: by whether its first layer sees where tokens stand."""
    return EncoderRecovery if model.adapter.positions is not None else UnplacedRecovery


class UnplacedRecovery(EncoderRecovery):
    """The rounds of search where nothing shows where tokens stand."""

    enough = promising = IN_ORDER
    first_starts, most_starts = FEW_STARTS, MOST_STARTS

    def _prepare(self) -> None:
        super()._prepare()
        self._groups: list[Tensor] | None = None  # tokens of single sentences that are still to be put in order

    def _round(self, inputs: Span, mixed: Span, starts: int, budget: Budget) -> bool:
        tokens, fits = self._fits(inputs)
        inner = self._inner(tokens[fits.any(dim=1)])
        if self._groups is None and self.before[1] is not None and len(inner):
            self._groups = self._companions(tokens, self.before[1], budget)
        self.bag = dict.fromkeys(inner.tolist(), 1.0)
        lengths = self._possible_lengths() if len(inner) else []
        while self._groups and self.before[1] is not None:
            own = self._groups.pop(0)
            least = len(own) + len(self.model.prefix) + len(self.model.suffix)
            near = [n for n in sorted(lengths) if n >= least][:MOST_REPEATS]
            # What was removed left rounding, so sentences are looked for in the update as it was.
            if self._among(own, near, self.before[1], GROUP_STARTS, budget, ordered=True):
                return True
        return self._among(inner, lengths, mixed, starts, budget)

    def _among(
        self, inner: Tensor, lengths: list[int], mixed: Span, starts: int, budget: Budget, ordered: bool = False
    ) -> bool:
        """Whether a sentence of some of these tokens was found; they may be in their likely order."""
        for number in range(0, len(lengths), LENGTHS_AT_ONCE):
            some = lengths[number : number + LENGTHS_AT_ONCE]
            choices = Choices.anywhere(self.model, inner, max(some))
            if self._search(choices, some, mixed, starts, budget, ordered):
                return True
            if budget.over:
                break
        return False

    def _companions(self, tokens: Tensor, mixed: Span, budget: Budget) -> list[Tensor]:
        """The sets of tokens that several tokens see alike, those first that most agree on, each in its likely order.

        They are sentences, but for tokens that occur several times.
        """
        companions = Companions(self.model, self.mixed[0], mixed, tokens)
        if self.layer or not companions.usable:
            return []
        views: dict[tuple[int, ...], list[list[float]]] = {}
        for number in torch.isin(tokens, self._inner(tokens)).nonzero()[:, 0].tolist():
            if budget.over:
                break
            seen = companions.of(number)
            if seen is not None:
                views.setdefault(tuple(seen.tokens), []).append(seen.distances)
        agreed = sorted((own for own in views if len(views[own]) >= AGREED), key=lambda own: -len(views[own]))
        ordered = []
        for own in agreed:
            distances = torch.tensor(views[own])
            places = (distances - distances.mean(dim=1, keepdim=True)).median(dim=0).values
            ordered.append(
                self._inner(tokens[torch.tensor(own, device=tokens.device)[places.argsort().to(tokens.device)]])
            )
        return ordered

    def _inner(self, tokens: Tensor) -> Tensor:
        """Those of the tokens that the tokenizer does not put around every text."""
        return tokens[~torch.isin(tokens, torch.tensor(self._special, device=tokens.device))]

    def _longest(self) -> int | None:
        return 1  # what a token looks like at the first position it looks like everywhere

    def _possible_lengths(self) -> list[int]:
        """Lengths that are left, likeliest first: every token adds one to the rank of what attention gives on."""
        known, shortest = self.update.known.lengths, shortest_sentence(self.model)
        if known is not None:
            return sorted(set(known))
        rank = 0 if self.before[1] is None else self.before[1].rank
        left = rank - sum(len(sentence.tokens) for sentence in self.recovered)
        sentences = None if self.size is None else max(1, self.size - self.count)
        if sentences == 1:
            return [left] if shortest <= left <= self.model.max_length else []
        usual = [left / (sentences or size) for size in range(1, USUAL_SIZE + 1)]
        most = min(left - (0 if sentences is None else (sentences - 1) * shortest), self.model.max_length)
        return sorted(range(shortest, most + 1), key=lambda n: min(abs(n - length) / length for length in usual))

    def _tries(self, energy: Energy, frames: Frames, picks: Tensor, rows: Tensor) -> Tensor:
        """Exchanges, moves and flips of every row, (rows, tries, positions)."""
        orders = [self._orders(frames.free[row]) for row in rows.tolist()]
        most = max(len(own) for own in orders)
        # Rows with fewer tries repeat the sentence as it is.
        as_it_is = torch.arange(picks.shape[1], device=picks.device).expand(most, -1)
        padded = torch.stack([torch.cat([own, as_it_is[len(own) :]]) for own in orders])
        ordered = picks[:, None].expand(padded.shape).gather(2, padded)
        return torch.cat([ordered, self._flipped(energy, frames, picks, rows)], dim=1)

    def _orders(self, free: Tensor) -> Tensor:
        """Orders of the positions in which two free ones are exchanged or one is moved, some of them by chance."""
        places = free.nonzero()[:, 0]
        orders = _neighbours(len(free), int(places.min()), len(places)) if len(places) else torch.zeros(0, len(free))
        chosen = torch.randperm(len(orders), generator=self.generator)[:MOST_TRIES]
        return orders[chosen].long().to(free.device)

    def _flipped(self, energy: Energy, frames: Frames, picks: Tensor, rows: Tensor) -> Tensor:
        gains = flip_gains(energy, frames, picks, rows)
        usable = ~gains.isinf()
        width = gains.shape[2]
        chance = torch.rand(gains.shape, generator=self.generator).to(gains)
        # The first half by their promise to first order, the other by chance: a whole token is a long way.
        ranks = gains.flatten(1).argsort(dim=1).argsort(dim=1)
        keys = torch.where(ranks < MOST_TRIES // 2, ranks.to(chance) - gains[0].numel(), chance.flatten(1))
        keys = keys.masked_fill(~usable.flatten(1), float("inf"))
        best = keys.topk(min(MOST_TRIES, gains[0].numel()), dim=1, largest=False)
        place = torch.where(best.values.isinf(), 0, best.indices // width)
        choice = torch.where(best.values.isinf(), picks[:, :1], best.indices % width)
        return picks[:, None].repeat(1, place.shape[1], 1).scatter_(2, place[..., None], choice[..., None])


@functools.cache
def _neighbours(positions: int, first: int, count: int) -> Tensor:
    """Orders of positions with two of `count` from the `first` on exchanged, or one moved and those between shifted.

    >>> _neighbours(4, 1, 3).tolist()
    [[0, 2, 1, 3], [0, 3, 2, 1], [0, 2, 3, 1], [0, 3, 1, 2], [0, 1, 3, 2]]
    """
    orders = []
    for i, j in itertools.combinations(range(first, first + count), 2):
        same, between = list(range(positions)), list(range(i + 1, j))
        orders.append([*same[:i], j, *between, i, *same[j + 1 :]])
        if between:
            orders.append([*same[:i], *between, j, i, *same[j + 1 :]])
            orders.append([*same[:i], j, i, *between, *same[j + 1 :]])
    return torch.tensor(orders, dtype=torch.long).view(-1, positions)
