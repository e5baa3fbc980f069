"""Rehearsals: batches of public text whose update the attacker makes itself, to learn what evidence is worth."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradleak.attacks.soft.background import Background
from gradleak.attacks.soft.coefficients import Coefficients, portions, solvable
from gradleak.attacks.soft.continuations import branches, usual_scores
from gradleak.attacks.soft.directions import observed
from gradleak.attacks.soft.judge import Judge, learn, untaught
from gradleak.attacks.soft.likeness import Likeness
from gradleak.attacks.soft.likeness import examples as beginnings_of
from gradleak.attacks.soft.likeness import learn as learn_likeness
from gradleak.attacks.soft.predictions import BagReader, Comparison, Predictions, labels_along
from gradleak.attacks.soft.search import CLOSE, Evidence
from gradleak.core.budget import Budget
from gradleak.models.text import TextModel
from gradleak.updates.update import Update

# Wrong tokens that stand beside each right one, and after each token of a row that is no sentence.
WRONG, AFTER_NONSENSE = 12, 2
# Wrong sentences that a first judge grows in every batch, the tokens that it grows them by, and how many of those
# that it liked best after each prefix count as wrong.
ASTRAY, LONG, LIKED = 6, 5, 3

# Tokens that go through the model, there and back, at once: adding up all weights' gradients costs as much.
AT_ONCE = 512

Rows = Sequence[Sequence[int]]
Distort = Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]]


def gradient_of(model: TextModel, rows: Rows, names: Sequence[str]) -> dict[str, Tensor]:
    """The gradient of the mean loss over all predicted tokens of a batch, as its client sends it."""
    parameters = model.parameters()
    wanted = [parameters[name] for name in names]
    predicted = sum(len(row) - 1 for row in rows)
    total = [torch.zeros_like(weight) for weight in wanted]
    for some in portions(rows, AT_ONCE):
        batch = model.pad([rows[number] for number in some])
        own = sum(len(rows[number]) - 1 for number in some)
        loss = model.loss(batch.ids, ids=batch.ids, mask=batch.mask) * own / predicted
        for whole, gradient in zip(total, torch.autograd.grad(loss, wanted, allow_unused=True), strict=True):
            if gradient is not None:
                whole += gradient
    return dict(zip(names, total, strict=True))


@dataclass(frozen=True)
class Examples:
    """Evidence of tokens after prefixes, and which of these stood there."""

    scores: Tensor
    usual: Tensor
    log_probs: Tensor
    explained: Tensor
    right: Tensor

    @staticmethod
    def judge(examples: Sequence[Examples]) -> Judge:
        columns = ("scores", "usual", "log_probs", "explained", "right")
        return learn(*(torch.cat([getattr(each, name) for each in examples]) for name in columns))


@dataclass(frozen=True)
class Learned:
    """What the evidence of an update is worth: of tokens after a prefix, and of their coefficients, if it has any."""

    compared: Comparison
    judge: Judge
    likeness: Likeness | None


def rehearse(
    model: TextModel,
    update: Update,
    background: Background,
    compared: Comparison,
    batches: Sequence[Rows],
    distort: Distort,
    budget: Budget,
    seed: int,
    show: Callable[[int], None] = lambda done: None,
) -> Learned | None:
    """What the evidence of an update like this is worth, from batches of public text; None if states do not show.

    `distort` does to a gradient what the client did to its own. A first judge learns from true sentences and
    nonsense, then grows sentences itself; what it wrongly likes there is what the second learns from too.
    """
    chance = random.Random(seed)
    stages: list[tuple[Rows, Evidence]] = []
    examples: list[Examples] = []
    alike: list[tuple[Tensor, Tensor]] = []
    for number, rows in enumerate(batches):
        if budget.over and examples:  # without any nothing can be read
            break
        made = Update(dict(distort(gradient_of(model, rows, list(update.tensors)))), update.manifest)
        seen = observed(background, made.tensors)
        if seen is None:
            return None
        bag = torch.tensor(sorted({token for row in rows for token in row[:-1]}), device=model.device)
        predictions = Predictions.of(model, compared, made.tensors)
        usual = usual_scores(model, seen, bag, seed)
        examples += _asked(model, rows, bag, usual, seen.scores, background, predictions, chance)
        if solvable(model, made.tensors, bag):
            alike.append(beginnings_of(Coefficients(model, made.tensors, bag.tolist()), rows, chance))
        stages.append(
            (rows, Evidence(model, seen, untaught(predictions.features), BagReader(predictions, bag), bag, usual))
        )
        show(number + 1)
    if not examples:
        return None
    first = Examples.judge(examples)
    for rows, evidence in stages:
        if budget.over:
            return Learned(compared, first, _likeness(alike))
        examples += list(_astray(rows, replace(evidence, judge=first), chance))
    return Learned(compared, Examples.judge(examples), _likeness(alike))


def _likeness(examples: Sequence[tuple[Tensor, Tensor]]) -> Likeness | None:
    """What coefficients are worth; None if there were none, or none of one kind."""
    if not examples:
        return None
    features, right = (torch.cat(each) for each in zip(*examples, strict=True))
    return learn_likeness(features, right) if 0 < int(right.sum()) < len(right) else None


def _asked(
    model: TextModel,
    rows: Rows,
    bag: Tensor,
    usual: Tensor,
    scores: Callable[[Sequence[Tensor]], Tensor],
    background: Background,
    predictions: Predictions,
    chance: random.Random,
) -> list[Examples]:
    examples = []
    for row, tokens, true in _questions(rows, chance):
        columns = torch.searchsorted(bag, torch.tensor([t for own in tokens for t in own], device=bag.device))
        places = torch.tensor([place for place, own in enumerate(tokens) for _ in own])
        log_probs, explained = labels_along(predictions, row, bag)
        states = branches(model, background.spots, row, tokens)
        labels = log_probs[places, columns], explained[places, columns]
        examples.append(Examples(scores(states), usual[columns], *labels, torch.tensor(true)))
    return examples


def _questions(rows: Rows, chance: random.Random) -> Iterator[tuple[list[int], list[list[int]], list[bool]]]:
    """Rows with tokens after each place of them, and which of these are right: true sentences, and nonsense."""
    every = [
        token for row in rows for token in row[:-1]
    ]  # common tokens more often: they make the nonsense that fits
    bag = sorted(set(every))
    for row in rows:
        if len(row) < 3:
            continue
        tokens, true = [], []
        for place in range(len(row) - 2):
            wrong = [
                token for token in chance.sample(bag, min(WRONG, len(bag))) if token not in row[place : place + 2]
            ]
            tokens.append([row[place + 1], *wrong])
            true += [True, *(False for _ in wrong)]
        yield list(row[:-2]), tokens, true
        nonsense = [chance.choice(every) for _ in range(len(row) - 2)]
        after = [chance.sample(bag, min(AFTER_NONSENSE, len(bag))) for _ in nonsense]
        yield nonsense, after, [False for own in after for _ in own]


@torch.no_grad()
def _astray(rows: Rows, evidence: Evidence, chance: random.Random) -> Iterator[Examples]:
    """What a judge likes best after prefixes that were not there: wherever it goes from them is wrong."""
    bag = evidence.bag.tolist()
    true = {tuple(row[: n + 1]) for row in rows for n in range(len(row))}
    prefixes: list[tuple[int, ...]] = [(chance.choice(bag), chance.choice(bag)) for _ in range(ASTRAY)]
    labels = evidence.reader.first(torch.tensor(prefixes, device=evidence.bag.device))
    for _ in range(LONG):
        chosen: list[list[int]] = [[] for _ in prefixes]
        for alike, columns, scores in evidence.closer(*labels, CLOSE):
            own = [label[alike[:, None], columns] for label in labels]
            values = evidence.judge(scores, evidence.usual[columns], *own)
            last = torch.tensor([prefixes[row][-1] for row in alike.tolist()], device=evidence.bag.device)[:, None]
            values = values.masked_fill(evidence.bag[columns] == last, float("-inf"))
            best = values.topk(min(LIKED, values.shape[1]), dim=1).indices
            there = torch.arange(len(alike))[:, None]
            tokens = evidence.bag[columns[there, best]].tolist()
            for row, of_row in zip(alike.tolist(), tokens, strict=True):
                chosen[row] = of_row
            right = [[(*prefixes[row], token) in true for token in chosen[row]] for row in alike.tolist()]
            liked = (scores[there, best], evidence.usual[columns[there, best]], *(each[there, best] for each in own))
            yield Examples(*(each.flatten(0, 1) for each in (*liked, torch.tensor(right))))
        prefixes = [
            (*prefix, chance.choice(own) if chance.random() < 0.3 else own[0])
            for prefix, own in zip(prefixes, chosen, strict=True)
        ]
        last_tokens = torch.tensor([prefix[-1] for prefix in prefixes], device=evidence.bag.device)
        labels = evidence.reader.further(torch.arange(len(prefixes)), last_tokens)
