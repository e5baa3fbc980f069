"""Which tokens a batch had, and about how often, from everything an update shows of them."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypedDict

import torch
from torch import Tensor

from gradleak.attacks.evidence.departures import departures
from gradleak.attacks.evidence.lengths import longest_sentence, total_tokens
from gradleak.attacks.evidence.predicted import predicted_tokens
from gradleak.attacks.evidence.rows import (
    RowRule,
    leverages,
    predicted_rows,
    present_rows,
    rows_above_noise,
    standing_out,
)
from gradleak.attacks.evidence.sparse import sparse_tokens
from gradleak.attacks.reasons import Reason
from gradleak.attacks.spans.candidates import fitting
from gradleak.attacks.spans.certify import attention_parts, carried, input_span
from gradleak.core.budget import Budget
from gradleak.models.sides import sides_of
from gradleak.models.text import TextModel
from gradleak.updates.update import Update

# Positions at which tokens are looked for when the update does not show how long sentences are.
USUAL_LENGTH = 64


class TokenFields(TypedDict):
    """The fields of a reconstruction that tokens fill."""

    bag: dict[str, float]
    counts: dict[str, int]


@dataclass
class Tokens:
    """Tokens with a score from 0 to 1, for some how often they seem to occur, and why the rest could not be found.

    Counts add up to the tokens of the batch where its gradient's rank shows these. Otherwise, as most tokens occur
    once, the lower quartile of the output layer's pulls is taken for a single occurrence.
    """

    scores: dict[int, float] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)
    reasons: list[Reason] = field(default_factory=list)

    @classmethod
    def of(cls, sentence: Sequence[int]) -> Tokens:
        """Those of a sentence that was all of the batch."""
        return cls(dict.fromkeys(sorted(set(sentence)), 1.0), dict(Counter(sentence)))

    def fields(self, model: TextModel, chosen: Sequence[int]) -> TokenFields:
        """The bag and the counts of some of them, under the tokenizer's names, as a reconstruction holds them."""
        names = [str(name) for name in model.tokenizer.convert_ids_to_tokens(list(chosen))]
        named = list(zip(names, chosen, strict=True))
        return {
            "bag": {name: round(self.scores[token], 4) for name, token in named},
            "counts": {name: self.counts[token] for name, token in named if token in self.counts},
        }


def tokens_of(
    model: TextModel,
    gradient: Update,
    rule: RowRule = "norm",
    spans: bool = True,
    budget: Budget | None = None,
) -> Tokens:
    """The tokens of the batch that made this gradient, or those of them that were found when the budget ended.

    A token embedding of its own moves only in the rows of the tokens that were read. If it is also the output layer
    it moves everywhere, but only the rows of tokens that were predicted move against the model's states. With `spans`
    tokens whose embedding lies in the span of the first layer's inputs are added; where rows show which were read,
    only those are tested, for the others cannot have been.
    """
    adapter, tokens = model.adapter, Tokens()
    embedding = gradient.tensors.get(adapter.parameter_of(adapter.token_embedding))
    head = _head(model, gradient)
    scores: dict[int, float] = {}
    rows = present_rows(embedding, rule) if embedding is not None and head is not embedding else None
    fit = tokens_in_span(model, gradient, rows, budget) if spans else None
    if fit is None and spans and embedding is None:
        fit = _in_combination(model, gradient, budget or Budget())
    if embedding is None:
        tokens.reasons.append(Reason(kind="words-missing"))
    elif head is not embedding:
        if rows is None:
            tokens.reasons.append(Reason(kind="rows-drowned", causes=departures(gradient)))
        else:
            sizes = embedding.norm(dim=1)
            scores.update({int(row): float(sizes[row] / sizes.max()) for row in rows})
    elif (above := rows_above_noise(embedding)) is not None:
        scores.update(dict.fromkeys(above.tolist(), 1.0))
    elif fit is None:
        levers = leverages(embedding)
        scores.update({int(row): float(levers[row]) for row in standing_out(levers, embedding.shape[1])})
    if fit is not None:
        scores.update(dict.fromkeys(fit.tolist(), 1.0))
    if model.goal.draws_targets:
        scores.update(dict.fromkeys(predicted_tokens(gradient, model), 1.0))
    elif head is not None:
        pull = predicted_rows(head)
        scores.update({int(row): max(scores.get(int(row), 0.0), 1.0) for row in pull.nonzero()[:, 0]})
        # A single sentence is assumed: its first token is read and not predicted, its last predicted and not read.
        total = total_tokens(gradient, sides_of(model)[-1], 1)
        tokens.counts = _counts(pull, list(scores), None if total is None else total - 1)
    if embedding is not None and head is embedding and not scores:
        tokens.reasons.append(Reason(kind="rows-drowned", causes=departures(gradient)))
    tokens.scores = {token: min(1.0, score) for token, score in sorted(scores.items())}
    return tokens


def _head(model: TextModel, gradient: Update) -> Tensor | None:
    """The gradient of a language model's output layer, a row per token; None if it was not sent."""
    if not model.goal.predicts_tokens:
        return None
    output = model.adapter.output_layer
    return gradient.tensors.get(
        model.adapter.parameter_of(model.adapter.token_embedding if model.adapter.tied else output)
    )


def tokens_in_span(
    model: TextModel, gradient: Update, among: Tensor | None = None, budget: Budget | None = None
) -> Tensor | None:
    """The tokens, of some or of all, that fit the first layer's span at some position; None if it has no end."""
    tested = torch.arange(model.vocabulary_size, device=model.device) if among is None else among
    spans = [(side, input_span(side, gradient.tensors)) for side in sides_of(model)]
    fits = [
        fitting(side, span, tested, _positions(side, gradient), budget=budget).any(dim=1)
        for side, span in spans
        if span is not None
    ]
    return tested[torch.stack(fits).any(dim=0)] if fits else None


def _in_combination(model: TextModel, gradient: Update, budget: Budget) -> Tensor | None:
    """The tokens that LoRA's few rows of the first layer are combinations of; None if that proves no set of them."""
    matrices, _ = carried(gradient.tensors, attention_parts(model, 0))
    if sum(len(matrix) for matrix in matrices) >= model.width:
        return None
    sparse = sparse_tokens(model, gradient.tensors, budget)
    if sparse is None or not sparse.certified:
        return None
    return torch.tensor(sorted(sparse.sizes), device=model.device)


def _positions(model: TextModel, gradient: Update) -> int:
    """How many positions there are to try: 1 where the first layer does not see them."""
    if model.adapter.positions is None:
        return 1
    return min(longest_sentence(gradient, model) or USUAL_LENGTH, model.max_length)


def _counts(pull: Tensor, tokens: list[int], total: int | None) -> dict[int, int]:
    """How often each token was predicted, where that shows; `total` is how many were, if that is known."""
    pulls = {token: float(pull[token]) for token in tokens if float(pull[token]) > 0}
    if not pulls:
        return {}

    def counted(once: float) -> dict[int, int]:
        return {token: max(1, round(own / once)) for token, own in pulls.items()}

    if total is None:
        least = min(pulls.values())
        # Of two values the quartile lies below both, where it means nothing.
        return counted(max(least, statistics.quantiles(pulls.values(), n=4)[0]) if len(pulls) > 1 else least)
    # A token that was half expected pulls half as much, so any of the pulls may be that of a single occurrence.
    guesses = [counted(once) for once in sorted(pulls.values(), reverse=True)]
    return min(guesses, key=lambda counts: abs(sum(counts.values()) - total))
