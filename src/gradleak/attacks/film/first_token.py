"""The first token of a sentence, judged by what comes after it.

Nothing predicts it, and the search had to guess it from the second token, where all sentences of a batch look alike.
Once a sentence is known its further tokens show it: they explain most of the update after the first token they had.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gradleak.attacks.film.attribution import Attribution
from gradleak.attacks.film.beam import LEAST_SHARE, MOST_SHARE, WEIGHT

# First tokens tried: those that the next token is likely after.
TRIED = 8
# Tokens by which a first token is judged.
JUDGED = 8
# The log-probability of a first token that was not among the candidates.
UNLIKELY = -20.0


class FirstTokenRepair:
    """Tries other first tokens in the place of a sentence's first, or of its first two."""

    def __init__(self, attribution: Attribution, first: Mapping[int, float]) -> None:
        self._attribution = attribution
        self._first = dict(first)
        model = attribution.model
        ids = torch.tensor(list(first), device=model.device)[:, None]
        with torch.no_grad():
            followers = model.logits(ids=ids, mask=torch.ones_like(ids))[:, -1].log_softmax(dim=1)
        prior = torch.tensor(list(first.values())).to(followers)
        self._pairs = followers + prior[:, None]  # (first tokens, vocabulary)

    def repaired(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """The sentence with the first token that is likeliest and makes the tokens after it explain most."""
        if self._attribution.span is not None or self._attribution.model.prefix or len(tokens) < 4:
            return tuple(tokens)  # the first token follows from the span or the tokenizer, or cannot be judged
        tried = [(first, *rest) for rest in (tokens[1:], tokens[2:]) for first in self._before(rest[0])]
        candidates = list(dict.fromkeys([tuple(tokens), *tried]))
        judged = self._attribution.judge([candidate[:JUDGED] for candidate in candidates])
        values = [
            self._first.get(candidate[0], UNLIKELY) + _value(*own)
            for candidate, own in zip(candidates, judged, strict=True)
        ]
        return candidates[max(range(len(values)), key=values.__getitem__)]

    def _before(self, token: int) -> list[int]:
        best = self._pairs[:, token].topk(min(TRIED, len(self._first))).indices
        return [list(self._first)[index] for index in best.tolist()]


def _value(log_probs: Tensor, shares: Tensor) -> float:
    """The value of all tokens; the second token's share is split among all sentences of the batch and left out."""
    return float(log_probs.sum() + WEIGHT * (shares[1:].clamp(max=MOST_SHARE) - LEAST_SHARE).sum())
