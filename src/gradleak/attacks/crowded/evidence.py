"""What speaks for a token after a prefix in a crowded update, and what that is worth.

Three things: how likely the language model finds it, how much of the update it explains as a prediction, and, once it
is read, the leverages of its states. A logistic regression weighs them; it learns on a batch of public text of which
the attacker makes the update itself.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.attacks.crowded.leverage import Leverages
from gradleak.attacks.film.attribution import Attribution
from gradleak.attacks.soft.continuations import branches
from gradleak.attacks.soft.judge import fitted
from gradleak.models.text import TextModel

# Log-probabilities and shares beyond these say no more.
UNLIKELY, SHARES = -15.0, (-0.5, 1.5)
# Wrong tokens beside each right one: the likeliest by a first guess, so many nats for a whole share.
WRONG, GUESS = 15, 6.0
# Sentences of the rehearsed batch that are looked at, and wrong second tokens of each beside the right one.
LOOKED_AT, SECONDS = 12, 48
# The first spots, by which pairs of first tokens are chosen before they are read through all layers.
EARLY = 8


@dataclass(frozen=True)
class Judge:
    """Weights of what is known before a token is read, and of all that is known after; the last is the constant."""

    before: Tensor
    after: Tensor

    def rough(self, labels: Tensor) -> Tensor:
        """The log-likelihood ratio by log-probability and share, (…, 2)."""
        return labels @ self.before[:-1] + self.before[-1]

    def value(self, labels: Tensor, levers: Tensor) -> Tensor:
        """The same with the leverages, (…, spots)."""
        return torch.cat([labels, levers], dim=-1) @ self.after[:-1] + self.after[-1]


@dataclass(frozen=True)
class Judges:
    """After a first token everything looks different, so second tokens are judged by themselves.

    Language model and shares are blind there, so `opening` judges a whole bag by the leverages of early layers.
    """

    opening: Tensor
    second: Judge
    later: Judge

    def at(self, size: int) -> Judge:
        """The judge of what comes after so many tokens."""
        return self.second if size == 1 else self.later

    def openings(self, levers: Tensor) -> Tensor:
        """The log-likelihood ratio of second tokens, by their leverages at the first spots, (…, spots)."""
        return levers @ self.opening[:-1] + self.opening[-1]


class Reader:
    """Reads beams token by token: what enters the spots at the last token, and what is known of every next one."""

    def __init__(self, attribution: Attribution, levers: Leverages, bag: Tensor) -> None:
        self.attribution, self.levers, self.bag = attribution, levers, bag
        self._reading = attribution.reading()

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows only, in this order; a row may come twice."""
        self._reading.keep(rows)

    @torch.no_grad()
    def read(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Of further tokens (rows, tokens) the last one's leverages, and log-probability and share of every next."""
        seen: list[Tensor] = []
        modules = [spot.parts[0].module for spot in self.levers.spots]
        hooks = [m.register_forward_pre_hook(lambda _, args: seen.append(args[0][:, -1])) for m in modules]
        try:
            plain, moved = self._reading.states(ids)
        finally:
            for hook in hooks:
                hook.remove()
        return self.levers.of(seen), labels_of(self.attribution, plain[:, -1], moved[:, -1], self.bag)


def labels_of(attribution: Attribution, plain: Tensor, moved: Tensor, bag: Tensor) -> Tensor:
    """Log-probability among the bag and share of each of its tokens after states (rows, width): (rows, bag, 2)."""
    before, after = (attribution.model.output_logits(states, bag).log_softmax(dim=1) for states in (plain, moved))
    shares = (after - before) / attribution.unit
    return torch.stack([before.clamp_min(UNLIKELY), shares.clamp(*SHARES)], dim=-1)


@torch.no_grad()
def labels_along(attribution: Attribution, row: Sequence[int], bag: Tensor) -> Tensor:
    """The same after each token of a row."""
    ids = torch.tensor([list(row)], device=bag.device)
    plain, moved = attribution.reading().states(ids)
    return labels_of(attribution, plain[0], moved[0], bag)


def seconds(model: TextModel, levers: Leverages, first: int, bag: Tensor) -> Tensor:
    """The leverages at the first spots of every token of a bag after a first token, (bag, spots)."""
    early = Leverages(levers.spots[:EARLY], levers.maps[:EARLY])
    return early.of(branches(model, early.spots, [first], [bag.tolist()]))


def learn(
    model: TextModel, attribution: Attribution, levers: Leverages, rows: Sequence[Sequence[int]], seed: int
) -> Judges | None:
    """What evidence is worth in an update that these rows made; None if they are too few or too short."""
    chance = random.Random(seed)
    bag = torch.tensor(sorted({token for row in rows for token in row[:-1]}), device=model.device)
    columns = {token: place for place, token in enumerate(bag.tolist())}
    chosen = [row for row in chance.sample(list(rows), len(rows)) if len(row) > 3][:LOOKED_AT]
    if not chosen or len(bag) < 2:
        return None
    early = [seconds(model, levers, row[0], bag) for row in chosen]
    begun: list[Tensor] = []
    for row, own in zip(chosen, early, strict=True):
        others = [c for c in range(len(bag)) if c != columns[row[1]]]
        begun.append(own[[columns[row[1]], *chance.sample(others, min(SECONDS, len(others)))]])
    opening = _ratio(torch.cat(begun), torch.cat([torch.arange(len(own)) == 0 for own in begun]))
    labels: dict[bool, list[Tensor]] = {True: [], False: []}
    states: dict[bool, list[Tensor]] = {True: [], False: []}
    width = min(len(bag), WRONG + 1)
    for row, own in zip(chosen, early, strict=True):
        along = labels_along(attribution, row[:-2], bag)
        guess = along[..., 0] + GUESS * along[..., 1]
        guess[0] = own @ opening[:-1]
        asked: list[list[int]] = []
        for place, values in enumerate(guess):
            right = columns[row[place + 1]]
            asked.append([right, *(c for c in values.topk(width).indices.tolist() if c != right)][:width])
        tokens = [[int(bag[column]) for column in own_columns] for own_columns in asked]
        seen = levers.of(branches(model, levers.spots, row[:-2], tokens)).view(len(asked), width, -1)
        known = torch.stack([along[place, own_columns] for place, own_columns in enumerate(asked)])
        for second, places in ((True, slice(0, 1)), (False, slice(1, None))):
            labels[second].append(known[places].flatten(0, 1))
            states[second].append(seen[places].flatten(0, 1))

    def judge(second: bool) -> Judge:
        known, read = torch.cat(labels[second]), torch.cat(states[second])
        right = torch.arange(len(known)) % width == 0
        return Judge(_ratio(known, right), _ratio(torch.cat([known, read], dim=1), right))

    return Judges(opening, judge(True), judge(False))


def _ratio(evidence: Tensor, right: Tensor) -> Tensor:
    """Weights of a log-likelihood ratio: how many examples there are of each kind counts for nothing."""
    weights = fitted(evidence.double(), right)
    share = right.double().mean()
    weights[-1] -= (share / (1 - share)).log()
    return weights.float()
