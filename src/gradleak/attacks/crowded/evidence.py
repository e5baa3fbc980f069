"""What speaks for a token after a prefix in a crowded update, and what that is worth.

Three things: how likely the language model finds it, how much of the update it explains as a prediction beside what
it explains after any prefix, and, once it is read, the leverages of its states. A logistic regression weighs them;
it learns on a batch of public text of which the attacker makes the update itself.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.attacks.crowded.leverage import Leverages
from gradleak.attacks.crowded.openings import early_leverages
from gradleak.attacks.film.attribution import Attribution
from gradleak.attacks.soft.continuations import branches
from gradleak.attacks.soft.judge import fitted
from gradleak.models.hooks import of_this_thread
from gradleak.models.text import TextModel

# Log-probabilities and shares beyond these say no more; below the first the language model is at a loss.
AT_A_LOSS, UNLIKELY, SHARES = -8.0, -15.0, (-0.5, 1.5)
# The least deviation of a share, a usual one, and limits of what is counted in them.
LEAST, USUAL, DEVIATIONS, EVIDENCE, PRECISION = 0.01, 0.1, (-6.0, 20.0), (-10.0, 20.0), 10.0
# Numbers that are known of a token before it is read.
LABELS = 7
# Wrong tokens beside each right one: the likeliest by a first guess, so many nats for a whole share.
WRONG, GUESS = 11, 6.0
# Sentences of the rehearsed batch that are looked at; pairs of first tokens, and wrong ones of each kind for each.
LOOKED_AT, BEGUN, MIXED = 10, 48, 8
Rows = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Usual:
    """How large the shares of a bag's tokens are after prefixes that were not in the batch.

    A token that was predicted often explains something after any prefix, and any token does after an odd one.
    """

    tokens: Tensor
    prefix: float

    @staticmethod
    @torch.no_grad()
    def of(attribution: Attribution, bag: Tensor, rows: Rows) -> Usual:
        """By the prefixes of rows of public text."""
        shares = torch.cat([_told(attribution, row[:-1], bag)[1] for row in rows if len(row) > 2])
        return Usual(shares.square().mean(dim=0).sqrt(), float(_size(shares).mean()))

    def labels(self, log_probs: Tensor, shares: Tensor) -> Tensor:
        """What is known of tokens after prefixes, (prefixes, bag, LABELS)."""
        deviation = (self.tokens * _size(shares) / max(self.prefix, 1e-12)).clamp_min(LEAST)
        return torch.stack(
            [
                log_probs.clamp_min(AT_A_LOSS),
                log_probs.clamp(UNLIKELY, AT_A_LOSS),
                shares,
                (shares / deviation).clamp(*DEVIATIONS),
                (shares * (USUAL / deviation).square()).clamp(*EVIDENCE),
                (USUAL / deviation).square().clamp(max=PRECISION),
                deviation.log(),
            ],
            dim=-1,
        )


@dataclass(frozen=True)
class Judge:
    """Weights of what is known before a token is read, and of all that is known after; the last is the constant."""

    before: Tensor
    after: Tensor

    def rough(self, labels: Tensor) -> Tensor:
        """The log-likelihood ratio by what is known before a token is read, (…, LABELS)."""
        return labels @ self.before[:-1] + self.before[-1]

    def value(self, labels: Tensor, levers: Tensor) -> Tensor:
        """The same with the leverages, (…, spots)."""
        return torch.cat([labels, levers], dim=-1) @ self.after[:-1] + self.after[-1]


@dataclass(frozen=True)
class Judges:
    """After a first token everything looks different: pairs of first tokens are judged by early leverages alone."""

    opening: Tensor
    later: Judge

    def openings(self, levers: Tensor) -> Tensor:
        """The log-likelihood ratio of pairs of first tokens, by the leverages at the first spots, (…, spots)."""
        return levers @ self.opening[:-1] + self.opening[-1]


class Reader:
    """Reads beams token by token: what enters the spots at the last token, and what is known of every next one."""

    def __init__(self, attribution: Attribution, levers: Leverages, bag: Tensor, usual: Usual) -> None:
        self.attribution, self.levers, self.bag, self.usual = attribution, levers, bag, usual
        self._reading = attribution.reading()

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows only, in this order; a row may come twice."""
        self._reading.keep(rows)

    @torch.no_grad()
    def read(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Of further tokens (rows, tokens) the last one's leverages, and the labels of every next."""
        seen: list[Tensor] = []
        modules = [spot.parts[0].module for spot in self.levers.spots]
        watch = of_this_thread(lambda _, args: seen.append(args[0][:, -1]))
        hooks = [module.register_forward_pre_hook(watch) for module in modules]
        try:
            plain, moved = self._reading.states(ids)
        finally:
            for hook in hooks:
                hook.remove()
        told = compared(self.attribution, plain[:, -1], moved[:, -1], self.bag)
        return self.levers.of(seen), self.usual.labels(*told)


def labels_along(attribution: Attribution, usual: Usual, row: Sequence[int], bag: Tensor) -> Tensor:
    """The labels of all tokens of a bag after each token of a row, (tokens, bag, LABELS)."""
    return usual.labels(*_told(attribution, row, bag))


@torch.no_grad()
def _told(attribution: Attribution, row: Sequence[int], bag: Tensor) -> tuple[Tensor, Tensor]:
    plain, moved = attribution.reading().states(torch.tensor([list(row)], device=bag.device))
    return compared(attribution, plain[0], moved[0], bag)


def compared(attribution: Attribution, plain: Tensor, moved: Tensor, bag: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probability among the bag and share of each of its tokens after states (rows, width)."""
    before, after = (attribution.model.output_logits(states, bag).log_softmax(dim=1) for states in (plain, moved))
    return before, ((after - before) / attribution.unit).clamp(*SHARES)


def _size(shares: Tensor) -> Tensor:
    """What anything explains after each prefix."""
    return shares.abs().median(dim=1, keepdim=True).values


def learn(
    attribution: Attribution, levers: Leverages, usual: Usual, bag: Tensor, rows: Rows, seed: int
) -> Judges | None:
    """What evidence is worth in an update that these rows made; None if they are too few or too short."""
    model, chance = attribution.model, random.Random(seed)
    columns = {token: place for place, token in enumerate(bag.tolist())}
    chosen = [row for row in chance.sample(list(rows), len(rows)) if len(row) > 3][:LOOKED_AT]
    if not chosen or len(bag) < 2:
        return None
    found: list[Examples] = []
    width = min(len(bag), WRONG + 1)
    for row in chosen:
        along = labels_along(attribution, usual, row[:-2], bag)[1:]
        guess = along[..., 0] + GUESS * along[..., 2]
        asked: list[list[int]] = []
        for values, token in zip(guess, row[2:-1], strict=True):
            right = columns[token]
            asked.append([right, *(c for c in values.topk(width).indices.tolist() if c != right)][:width])
        tokens = [[int(bag[column]) for column in own] for own in asked]
        seen = levers.of(branches(model, levers.spots, row[:-2], [[], *tokens]))
        known = torch.cat([along[place, own] for place, own in enumerate(asked)])
        found.append(Examples(known, seen, torch.arange(len(known)) % width == 0))
    found += [_strayed(attribution, levers, usual, bag, columns, row, rows, chance) for row in chosen]
    return Judges(_opening(model, levers, rows, chance), Examples.judge(found))


def _opening(model: TextModel, levers: Leverages, rows: Rows, chance: random.Random) -> Tensor:
    """What early leverages are worth: right pairs of first tokens against those put together of two sentences."""
    true = {(row[0], row[1]) for row in rows if len(row) > 1}
    first, second = sorted({one for one, _ in true}), sorted({token for row in rows for token in row[1:]})
    pairs = set(true)
    for one, two in sorted(true)[:BEGUN]:
        pairs |= {(token, two) for token in chance.sample(first, min(MIXED, len(first)))}
        pairs |= {(one, token) for token in chance.sample(second, min(MIXED, len(second)))}
    seen: list[Tensor] = []
    right: list[bool] = []
    for token in first:
        after = sorted(two for one, two in pairs if one == token)
        seen.append(early_leverages(model, levers, token, after))
        right += [(token, two) in true for two in after]
    return _ratio(torch.cat(seen), torch.tensor(right))


@dataclass(frozen=True)
class Examples:
    """Labels and leverages of tokens after prefixes, and which of these stood there."""

    labels: Tensor
    levers: Tensor
    right: Tensor

    @staticmethod
    def judge(examples: Sequence[Examples]) -> Judge:
        labels, levers, right = (
            torch.cat([getattr(each, part) for each in examples]) for part in ("labels", "levers", "right")
        )
        return Judge(_ratio(labels, right), _ratio(torch.cat([labels, levers], dim=1), right))


def _strayed(
    attribution: Attribution,
    levers: Leverages,
    usual: Usual,
    bag: Tensor,
    columns: dict[int, int],
    row: Sequence[int],
    rows: Rows,
    chance: random.Random,
) -> Examples:
    """The tokens of another row after the beginning of a row: what a beam finds that strays, all of it wrong."""
    other = chance.choice([each for each in rows if each is not row and len(each) > 3] or [row])
    begun = list(row[: chance.randrange(2, len(row) - 1)])
    strayed = [*begun, *other[chance.randrange(1, len(other) - 2) : -1]]
    places = range(len(begun) - 1, len(strayed) - 1)
    after = [[token] for token in strayed[1:]]
    labels = labels_along(attribution, usual, strayed[:-1], bag)
    known = torch.stack([labels[place, columns[strayed[place + 1]]] for place in places])
    seen = levers.of(branches(attribution.model, levers.spots, strayed[:-1], after))[places.start :]
    return Examples(known, seen, torch.zeros(len(known), dtype=torch.bool))


def _ratio(evidence: Tensor, right: Tensor) -> Tensor:
    """Weights of a log-likelihood ratio: how many examples there are of each kind counts for nothing."""
    weights = fitted(evidence.double(), right)
    share = right.double().mean()
    weights[-1] -= (share / (1 - share)).log()
    return weights.float()
