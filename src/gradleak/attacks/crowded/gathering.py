"""Beginnings of sentences in a gradient with more different tokens than dimensions, gathered from sure to surer.

What came back to each token is only known roughly at first (`likeliest.py`), but how roughly is known too. The right
beginning leaves as little over as that allows, and any other clearly more. To the query of its last token something
can have come back in a few directions only, so that all others are known better, and more beginnings show.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from gradleak.attacks.crowded.attended import LEFT_OVER, Attended, Backs
from gradleak.attacks.crowded.likeliest import GOOD, Likeliest
from gradleak.attacks.evidence.rows import leverages
from gradleak.attacks.spans.candidates import first_inputs
from gradleak.core.budget import Budget
from gradleak.models.text import TextModel
from gradleak.updates.update import Update

# A beginning may leave so many times what is expected to be wrong, and no more than this share of the energy; any
# other must leave so many times as much. On smollm2, 64 sentences, right ones left 0.6 times what was expected in the
# median and 1.2 times at most.
TIMES, MOST, CLEARLY = 2.0, 0.1, 2.5
# Once little is wrong, so many times what is expected may be left over, in a share of the gradient.
ALLOWED = 3.0
# Below this share of the energy everything is rounding.
NOTHING = 1e-7
# Candidates for every token that was found: some that were there stand out less than others that were not.
WIDER = 1.4
# How much more than expected the gradient must have along a token for it to be missing among the candidates, and how
# many such tokens are added at most.
MISSED, MOST_MISSED = 2.0, 12
# Without new beginnings solving again goes on while it makes what is wrong so much less.
SETTLED = 0.9
# Rounds of finding beginnings and solving again.
ROUNDS = 16
# A token is asked again what may come before it once what is wrong about it has become so much less.
SURER = 0.25
# Where so little is wrong in the median, no token is missing: the equations have one answer, and it fits.
SETTLED_ALL = 1e-5

Numbers = tuple[int, ...]


class Gathering:
    """Finds beginnings; `attended` then tests others by all that is known."""

    def __init__(
        self,
        model: TextModel,
        gradient: Update,
        bag: Sequence[int],
        length: int,
        first: Iterable[int],
        budget: Budget,
        wider: float = WIDER,
    ) -> None:
        self.model, self.budget = model, budget
        tokens, sizes = candidates(model, gradient.tensors, bag, wider)
        self.attended = Attended(model, gradient.tensors, tokens, length)
        query, _ = self.attended.gradients
        self.queries = Likeliest(self.attended.inputs, query, sizes, self.attended.shape)
        self.numbers = {token: number for number, token in enumerate(tokens)}
        self.first: list[Numbers] = [(self.numbers[token],) for token in first if token in self.numbers]
        self.known: dict[int, Numbers] = {}
        # What beginnings leave over that fitted when they were asked last, by their last tokens, and up to which
        # limits each beginning was asked about what may follow.
        self._offered: dict[int, dict[Numbers, float]] = defaultdict(dict)
        self._limits: dict[Numbers, Tensor] = {}
        self._see()

    @property
    def beginnings(self) -> list[Numbers]:
        """The longest beginnings that were found."""
        return longest(self.known.values())

    @property
    def found(self) -> dict[int, tuple[int, ...]]:
        """All beginnings that are known, as tokens, by the last of each."""
        tokens = self.attended.tokens
        return {tokens[last]: tuple(tokens[number] for number in own) for last, own in self.known.items()}

    @property
    def good(self) -> bool:
        """Whether most is known well enough to follow beginnings."""
        return float(self.queries.off.median()) < GOOD

    def run(self, new: Mapping[int, Numbers]) -> None:
        """Find all beginnings that show, besides these, by the last token of each."""
        for _ in range(ROUNDS):
            if new or self.known:
                self._narrow(new)
            if self.budget.over:
                break
            new = self._shown()
            if not new and not self._settled():
                new = self._shown()
            if not new:
                break

    def _settled(self) -> bool:
        """Solve again while that makes what is wrong much less; whether it did not at all."""
        first = before = float(self.queries.off.median())
        for _ in range(ROUNDS if self.known else 0):
            if self.budget.over:
                break
            self._narrow({})
            now = float(self.queries.off.median())
            if now > SETTLED * before:
                break
            before = now
        return before == first

    def missed(self) -> list[int]:
        """Tokens of the vocabulary that are not among the candidates and seem to have been read."""
        if float(self.queries.off.median()) < SETTLED_ALL:
            return []
        among = self.model.text_tokens.clone()
        among[list(self.numbers)] = False
        others = among.nonzero()[:, 0]
        more = self.queries.missed(first_inputs(self.model, others, 1)[:, 0].double())
        most = more.topk(min(MOST_MISSED, len(more)))
        return others[most.indices[most.values > MISSED]].tolist()

    def _narrow(self, new: Mapping[int, Numbers]) -> None:
        """Let beginnings say in which directions their last tokens can have got something back."""
        attended = self.attended
        self.queries.narrow(
            {
                number: attended.turn(attended.directions(own).mT, len(own) - 1, back=True).mT
                for number, own in new.items()
            }
        )
        kept, every = set(self.queries.known), {**self.known, **new}
        self.known = {number: own for number, own in every.items() if number in kept}
        for number in every.keys() - kept:  # it was wrong, and all is asked about it again
            self._offered.pop(number, None)
            for limits in self._limits.values():
                limits[number] = float("inf")
        self._see()

    def _see(self) -> None:
        allowed = (ALLOWED * self.queries.off.sqrt()).clamp_min(LEFT_OVER)
        self.limits = (TIMES * self.queries.off).clamp_min(NOTHING)
        unknown = torch.ones_like(allowed, dtype=torch.bool)
        unknown[list(self.known)] = False
        self.asked = (self.limits < MOST) & unknown
        present = self.queries.present
        self.attended.see(Backs(self.queries.rows, allowed, inner=present, asked=unknown))

    def _shown(self) -> dict[int, Numbers]:
        """Beginnings that explain what came back to their last token, where nothing else does."""
        for values, beginnings in self._offers():
            for own, value in zip(beginnings, values, strict=True):
                if len(set(own)) == len(own):
                    self._offered[own[-1]][own] = value
        new: dict[int, Numbers] = {}
        for number in self.asked.nonzero()[:, 0].tolist():
            limit = float(self.limits[number])
            left = {own: value for own, value in self._offered[number].items() if value < CLEARLY * limit}
            self._offered[number] = left
            ranked = sorted(left, key=left.__getitem__)
            if not ranked:
                continue
            best = ranked[0]
            clearly = CLEARLY * max(left[best], NOTHING)
            if left[best] > limit or (len(ranked) > 1 and left[ranked[1]] < clearly):
                continue
            # Tokens that no longer matter pass every test.
            if len(best) == 2 or self._of(self.attended.left_over(best[1:]), len(best) - 2) >= clearly:
                new[number] = best
        return new

    def _offers(self) -> Iterable[tuple[list[float], list[Numbers]]]:
        """Beginnings with what each leaves over of the energy, those that leave little.

        What a token leaves over of a beginning is asked once, and again when that has become clearer.
        """
        attended = self.attended
        if len(self.first) != 1:  # else all begin alike
            yield self._little(attended.firsts(), ())
        else:
            yield self._little(attended.next_ones(self.first[0])[None], self.first[0])
        for beginning in [*self.beginnings, *sorted({own[:1] for own in self.known.values()})]:
            if self.budget.tick() or len(beginning) + 2 > attended.longest:
                continue
            if len(beginning) > 1:
                yield self._little(attended.next_ones(beginning)[None], beginning)
            before = self._limits.get(beginning)
            if before is None:
                before = torch.full_like(self.limits, float("inf"))
            asked = self.asked & (self.limits <= SURER * before)
            if bool(asked.any()):
                self._limits[beginning] = torch.where(asked, self.limits, before)
                some = asked.nonzero()[:, 0].tolist()
                yield self._little(attended.next_twos(beginning, some), beginning, some)

    def _little(
        self, left: Tensor, before: Numbers, last: Sequence[int] | None = None
    ) -> tuple[list[float], list[Numbers]]:
        """Of shares left over, (between, last) or (1, last), those that are little enough to be compared."""
        between = len(left) > 1
        some = torch.arange(left.shape[1]) if last is None else torch.tensor(last, dtype=torch.long)
        energies = self._of(left, len(before) + int(between) - int(not before))
        fits = (energies < CLEARLY * self.limits[some]) & self.asked[some]
        rows, columns = fits.nonzero().unbind(1)
        pairs = zip(rows.tolist(), some[columns].tolist(), strict=True)
        inner = self.attended.inner.tolist() if before else range(len(left))
        beginnings = [(*before, inner[row], last) if between else (*before, last) for row, last in pairs]
        return energies[rows, columns].tolist(), beginnings

    def _of(self, left: Tensor | float, explained: int) -> Tensor:
        """What is left over for each direction that a beginning does not explain, relative to all."""
        width = self.attended.width
        return torch.as_tensor(left).square() * width / max(1, width - max(1, explained))


def longest(begun: Collection[Numbers]) -> list[Numbers]:
    """Of beginnings those that no other goes on.

    >>> longest([(1, 2), (1, 2, 3), (4, 5)])
    [(1, 2, 3), (4, 5)]
    """
    within = {own[:size] for own in begun for size in range(1, len(own))}
    return sorted(set(begun) - within)


def candidates(
    model: TextModel, tensors: Mapping[str, Tensor], bag: Sequence[int], wider: float
) -> tuple[list[int], Tensor]:
    """Tokens that may have been read, and how large each is at first.

    Of a table that is the output layer too rows stand out by and by; more are taken than were found.
    """
    adapter = model.adapter
    table = tensors.get(adapter.parameter_of(adapter.token_embedding))
    if not adapter.tied or table is None:
        tokens = sorted(bag)
        return tokens, torch.ones(len(tokens), device=model.device)
    levers = leverages(table) * model.text_tokens
    wide = set(levers.topk(min(len(levers), int(wider * len(bag)))).indices.tolist())
    tokens = sorted(wide.union(bag))
    return tokens, levers[tokens].clamp_min(1e-3)
