"""Sentences of an update that names no tokens: grown over the whole vocabulary by what they explain as predictions.

In the first round of LoRA the B factors are zero, and so are the gradients of A: no state and no token shows. The
predictions do (`predictions.py`). First tokens leave no trace, as their states look all alike, and hardly any is lost
with a wrong one: so every likely second token is tried after the first that suits it best, and what follows decides.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.attacks.soft.judge import UNLIKELY, fitted, labels_of, weighed
from gradleak.attacks.soft.predictions import DEVIATIONS, FEATURES, LIKELY, Predictions, Seen
from gradleak.attacks.soft.search import Written, distinct, loops
from gradleak.core.budget import Budget

# First tokens that are tried with any second, and second tokens that are looked at for every beam.
FIRSTS, SECONDS = 256, 10
# How much a first token's own probability counts for which suits a second: else one would stand before all of them.
OWN_PRIOR = 0.3
# Tokens that are judged beside the likeliest: those of the whole vocabulary that seem to explain most.
FURTHER = 48
# The weight of a log-probability while those are chosen; deviations count fully.
ROUGHLY = 0.5
# How much of its weight the language model keeps while sentences are compared: at first fluent text is always
# likelier than the batch's, and there is more of it than any search holds.
FLUENCY = 0.3
# Continuations of one sentence that are looked at, and how many times the usual number of beams go on after the
# third, fourth, … token.
CONTINUED, BEAMS = 16, (4, 3, 2)
# Sentences with the same tokens from the second to the fourth that go on, and the last tokens in which they differ.
OF_ONE, ALIKE_IN = 16, 3
# A sentence is given up once it has fallen so far below its best, or nothing speaks for it after so many tokens.
GIVE_UP, NOTHING, LONG_ENOUGH = 8.0, -2.0, 6
# After so many tokens, again and again, so many of the best sentences are asked to be confirmed.
CHECKED, LIKELIEST = 12, 16
# Sentences that are read at once.
AT_ONCE = 256


@dataclass(frozen=True)
class OpenJudge:
    """The weights of log-probability, of what is explained, and of 1; and a usual log-probability."""

    weights: Tensor
    usual: float

    def __call__(self, log_probs: Tensor, explained: Tensor) -> Tensor:
        """Log-likelihood ratios in which fluency counts for less than it is worth."""
        fluent = log_probs.clamp_min(UNLIKELY) - self.usual
        return weighed(self.weights, log_probs, explained) - (1 - FLUENCY) * self.weights[0] * fluent


@dataclass(frozen=True)
class Candidates:
    """Tokens that may come after each prefix, with log-probabilities and what they explain."""

    tokens: Tensor
    log_probs: Tensor
    explained: Tensor


@torch.no_grad()
def candidates(predictions: Predictions, seen: Seen, further: Tensor | None = None) -> Candidates:
    """The likeliest tokens after each prefix, those that seem to explain most, and one further each, if given."""
    log_probs = predictions.log_probs(seen)
    likely = log_probs.topk(min(LIKELY, log_probs.shape[1]), dim=1)
    outputs = predictions.outputs[likely.indices]
    # Of the first view, the deviation of what a likely token explains by chance.
    deviation = predictions.explained(seen, likely.values, outputs)[..., FEATURES - 1].mean(dim=1, keepdim=True).exp()
    raised = seen.shifts[0][0] @ predictions.outputs.T / predictions.moved[0][0].unit
    raised -= (likely.values.softmax(dim=1) * raised.gather(1, likely.indices)).sum(dim=1, keepdim=True)
    rough = ROUGHLY * log_probs.clamp_min(UNLIKELY) + (raised / deviation).clamp(*DEVIATIONS)
    rough = rough.masked_fill(~predictions.model.text_tokens, float("-inf")).scatter(1, likely.indices, float("-inf"))
    more = rough.topk(min(FURTHER, rough.shape[1]), dim=1).indices
    tokens = torch.cat([likely.indices, more, *([] if further is None else [further[:, None]])], dim=1)
    own = log_probs.gather(1, tokens)
    return Candidates(tokens, own, predictions.explained(seen, own, predictions.outputs[tokens]))


def learn(rehearsed: Iterable[tuple[Predictions, Sequence[Sequence[int]]]], budget: Budget) -> OpenJudge | None:
    """The judge that tells the right next token from all others that look like it; None if there was no time.

    `rehearsed` are batches of public text and what their updates explain.
    """
    evidence, right = [], []
    for predictions, rows in rehearsed:
        for row in rows:
            if budget.over:
                return None
            found = candidates(
                predictions, predictions.along(row[:-1]), torch.tensor(row[1:], device=predictions.model.device)
            )
            wrong = found.tokens != found.tokens[:, -1:]
            wrong[:, -1] = True
            # The token after the first leaves no trace.
            known = labels_of(found.log_probs, found.explained)[1:][wrong[1:]].double()
            place = torch.zeros_like(wrong)
            place[:, -1] = True
            evidence.append(known)
            right.append(place[1:][wrong[1:]])
    known, true = torch.cat(evidence), torch.cat(right)
    weights = fitted(known, true)
    share = true.double().mean()
    weights[-1] -= (share / (1 - share)).log()  # how many others were looked at counts for nothing
    return OpenJudge(weights.float(), float(known[:, 0].mean()))


def open_search(
    predictions: Predictions,
    judge: OpenJudge,
    first: Mapping[int, float],
    beams: int,
    length: int,
    budget: Budget,
    confirmed: Callable[[Written], bool],
    show: Callable[[Sequence[int]], None] = lambda tokens: None,
) -> list[Written]:
    """Sentences that begin with one of these tokens, given with their log-probabilities; most evidence first.

    `confirmed` says whether something that had no part in the search speaks for a sentence too. If it does for none
    of the best, there is nothing to be read.
    """
    alive = _picked(_opened(predictions, judge, first, SECONDS * beams, budget), BEAMS[0] * beams)
    ended: list[Written] = []
    if not alive:
        return []
    device = predictions.model.device
    reading = predictions.reading()
    sentences = [sentence for _, sentence in alive]
    seen = reading.read(torch.tensor([sentence.tokens for sentence in sentences], device=device))
    for size in range(len(sentences[0].tokens), length):
        if budget.tick():
            break
        width = BEAMS[min(size - 2, len(BEAMS) - 1)] * beams
        picked = _picked(_continued(sentences, predictions, judge, seen), width)
        going = []
        for row, sentence in picked:
            fallen = sentence.best.total - sentence.total > GIVE_UP
            if fallen or (size >= LONG_ENOUGH and sentence.total < NOTHING):
                ended.append(sentence)
            else:
                going.append((row, sentence))
        sentences = [sentence for _, sentence in going]
        if not going:
            break
        if size % CHECKED == 0 and not any(map(confirmed, distinct([*ended, *sentences])[:LIKELIEST])):
            break
        show(max(sentences, key=lambda sentence: sentence.total).tokens)
        reading.keep(torch.tensor([row for row, _ in going], device=device))
        seen = reading.read(torch.tensor([[sentence.tokens[-1]] for sentence in sentences], device=device))
    return sorted([*ended, *sentences], key=lambda sentence: sentence.best.total, reverse=True)


def _opened(
    predictions: Predictions, judge: OpenJudge, first: Mapping[int, float], count: int, budget: Budget
) -> Iterator[tuple[int, Written]]:
    """The first three tokens of sentences: the likeliest second tokens, each after the first that suits it best."""
    device = predictions.model.device
    # A list's dash or star is likely too, but what follows it shows far less.
    words = [token for token in first if predictions.model.decode([token])[:1].isalpha()] or list(first)
    ids = torch.tensor(words[:FIRSTS], device=device)
    prior = torch.tensor([first[token] for token in ids.tolist()], device=device)
    reading = predictions.reading()
    log_probs = predictions.log_probs(reading.read(ids[:, None]))
    likely = (log_probs + prior[:, None]).logsumexp(dim=0)
    suits = (log_probs + OWN_PRIOR * prior[:, None]).argmax(dim=0)
    for seconds in likely.topk(min(count, len(likely))).indices.split(AT_ONCE):
        if budget.over:
            return
        rows = suits[seconds]
        begun = [Written(pair, (0.0,)) for pair in zip(ids[rows].tolist(), seconds.tolist(), strict=True)]
        yield from _continued(begun, predictions, judge, reading.forked(rows).read(seconds[:, None]))


def _continued(
    sentences: Sequence[Written], predictions: Predictions, judge: OpenJudge, seen: Seen
) -> Iterator[tuple[int, Written]]:
    """What may come after each sentence, with the sentence's number."""
    for some in torch.arange(len(sentences)).split(AT_ONCE):
        found = candidates(predictions, seen.at(some))
        values, places = judge(found.log_probs, found.explained).topk(min(CONTINUED, found.tokens.shape[1]), dim=1)
        tokens = found.tokens.gather(1, places).tolist()
        for row, own, judged in zip(some.tolist(), tokens, values.tolist(), strict=True):
            looping = loops(sentences[row].tokens)
            for token, value in zip(own, judged, strict=True):
                if token not in looping:
                    yield row, sentences[row].with_token(token, value)


def _picked(options: Iterator[tuple[int, Written]], count: int) -> list[tuple[int, Written]]:
    """The options with most evidence, with no two that end alike, and not too many that begin alike."""
    picked: list[tuple[int, Written]] = []
    ends: set[tuple[int, ...]] = set()
    begun: dict[tuple[int, ...], int] = defaultdict(int)
    for row, sentence in sorted(options, key=lambda option: option[1].total, reverse=True):
        end, beginning = sentence.tokens[-ALIKE_IN:], sentence.tokens[1:4]
        if end not in ends and begun[beginning] < OF_ONE:
            ends.add(end)
            begun[beginning] += 1
            picked.append((row, sentence))
        if len(picked) == count:
            break
    return picked
