"""The first token of a sentence, judged by what comes after it.

Nothing predicts it, and the search had to guess it from the second one, where all sentences of a batch look alike.
Once a sentence is known its further tokens tell: they explain most behind the beginning they had.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gradleak.attacks.film.beam import HALF, MOST_SHARE, WEIGHT
from gradleak.attacks.film.explained import Explainer

# First tokens tried, those before whose follower is likely.
TRIED = 8
# Tokens by which a beginning is judged.
JUDGED = 8
# The log-probability of a first token that was never thought of as one.
UNLIKELY = -20.0


class Beginnings:
    """Tries other first tokens in the place of the first one, or of the first two."""

    def __init__(self, explainer: Explainer, starts: Mapping[int, float]) -> None:
        self._explainer = explainer
        self._starts = dict(starts)
        model = explainer.model
        ids = torch.tensor(list(starts), device=model.device)[:, None]
        with torch.no_grad():
            followers = model.logits(ids=ids, mask=torch.ones_like(ids))[:, -1].log_softmax(dim=1)
        prior = torch.tensor(list(starts.values())).to(followers)
        self._pairs = followers + prior[:, None]  # (starts, vocabulary)

    def mended(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """The sentence with the beginning that is likeliest and makes its next tokens explain most."""
        if self._explainer.span is not None or self._explainer.model.prefix or len(tokens) < 4:
            return tuple(tokens)  # the span has told the first token, the tokenizer has, or nothing can
        tried = [(start, *rest) for rest in (tokens[1:], tokens[2:]) for start in self._before(rest[0])]
        candidates = list(dict.fromkeys([tuple(tokens), *tried]))
        judged = self._explainer.judge([candidate[:JUDGED] for candidate in candidates])
        values = [
            self._starts.get(candidate[0], UNLIKELY) + _value(*own)
            for candidate, own in zip(candidates, judged, strict=True)
        ]
        return candidates[max(range(len(values)), key=values.__getitem__)]

    def _before(self, token: int) -> list[int]:
        best = self._pairs[:, token].topk(min(TRIED, len(self._starts))).indices
        return [list(self._starts)[index] for index in best.tolist()]


def _value(log_probs: Tensor, shares: Tensor) -> float:
    """The worth of all tokens; the second one's share is split among all sentences of the batch and left out."""
    return float(log_probs.sum() + WEIGHT * (shares[1:].clamp(max=MOST_SHARE) - HALF).sum())
