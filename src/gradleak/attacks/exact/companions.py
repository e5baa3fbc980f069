"""Which tokens stand in one sentence, and about where, read off a span of an encoder with relative positions.

What a layer's second half sees of a token is its embedding plus, for every head, a mean of the values of its
sentence's tokens, weighed by the attention, all of it scaled to a fixed size and by a weight for each dimension. It
lies in the span of that part's gradient. The embeddings and values of all tokens of the batch are known, so the
attention's weights are the solution of linear equations: not negative, adding up to 1 for every head, and zero for
tokens of other sentences. Where tokens occur in several sentences there are further solutions, which see more tokens;
the one that sees fewest is right. A weight depends on the two tokens, which are known, and on how far they are apart.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from gradleak.attacks.spans.candidates import first_inputs
from gradleak.attacks.spans.probe import Probe
from gradleak.attacks.spans.spans import Span
from gradleak.models.adapter import Part
from gradleak.models.text import TextModel

# How well single tokens must be foretold for a model to be of this form.
LIKE = 1e-4
# Weights below this are rounding.
LEAST_WEIGHT = 1e-3
# Rounds in which small weights are made dearer, and what keeps the price of none finite.
ROUNDS, PRICE = 6, 3e-3
# Unknown weights beyond this many take too long.
MOST_UNKNOWN = 1500
# Distances of tokens that are told apart; models put larger ones together.
FARTHEST = 64

Values = NDArray[np.float64]


class Seen(NamedTuple):
    """The numbers of the tokens that a token sees, itself included, and how far after it each seems to stand."""

    tokens: list[int]
    distances: list[float]


class Companions:
    """What each token of a batch sees, by the span of what the second half of the first layer sees."""

    def __init__(self, model: TextModel, part: Part, span: Span, tokens: Tensor) -> None:
        """`part` is a part of the first layer that the span is of, `tokens` are all tokens of the batch."""
        self.count, self.heads = len(tokens), int(model.module.config.num_attention_heads)
        self.usable = span.map is None and 0 < self.heads * self.count <= MOST_UNKNOWN
        self.usable &= bool(model.adapter.position_biases)
        if not self.usable:
            return
        query, key, value, out = (
            _matrix(model.adapter.parts[0][role]) for role in ("query", "key", "value", "attention_out")
        )
        with torch.no_grad():
            own, inputs = model.embed(tokens).double(), first_inputs(model, tokens, 1)[:, 0].double()
            added = torch.stack(
                [v @ o.T for v, o in zip(self._split(inputs @ value.T), self._split(out), strict=True)]
            )
            ids = tokens[:, None]
            seen = Probe(model, [part])(input_ids=ids, mask=torch.ones_like(ids))[0][:, 0].double()
            queries, keys = self._split(inputs @ query.T), self._split(inputs @ key.T)
            self._scores = torch.stack([q @ k.T for q, k in zip(queries, keys, strict=True)]).cpu().numpy()
            self._biases = _biases(model.adapter.position_biases[0])
        alone = own + added.sum(dim=0)  # a token that sees nothing but itself
        weight = (seen / alone * alone.square().mean(dim=1, keepdim=True).sqrt()).median(dim=0).values
        misfit = F.normalize(alone * weight, dim=1) - F.normalize(seen, dim=1)
        self.usable = bool(misfit.norm(dim=1).max() < LIKE)
        outside = span.complement.to(own) * weight
        self._own = (own @ outside.T).cpu().numpy()
        self._added = (added.flatten(0, 1) @ outside.T).cpu().numpy().T
        self._noise = (span.limits(seen) * (alone * weight).norm(dim=1)).cpu().numpy()

    def of(self, number: int) -> Seen | None:
        """What the token of this number sees; None if no weights fit."""
        weights = self._weights(number)
        if weights is None:
            return None
        tokens = sorted({*np.flatnonzero(weights.mean(axis=0) > LEAST_WEIGHT).tolist(), number})
        return Seen(tokens, self._distances(number, tokens, weights))

    def _weights(self, number: int) -> Values | None:
        """The attention's weights, (heads, tokens)."""
        from scipy.optimize import linprog, nnls

        count, heads = self.count, self.heads
        equations = np.concatenate([self._added, np.kron(np.eye(heads), np.ones((1, count)))])
        wanted = np.concatenate([-self._own[number], np.ones(heads)])
        noise = np.full(len(wanted), self._noise[number])
        noise[-heads:] = LEAST_WEIGHT**2
        try:
            weights, _ = nnls(equations, wanted, maxiter=20 * heads * count)
        except RuntimeError:  # it did not come to an end
            return None
        seen: list[int] = []
        for _ in range(ROUNDS):
            per_token = weights.reshape(heads, count).mean(axis=0)
            before, seen = seen, np.flatnonzero(per_token > LEAST_WEIGHT).tolist()
            if seen == before:
                break
            found = linprog(
                np.tile(1 / (per_token + PRICE), heads),
                A_ub=np.concatenate([equations, -equations]),
                b_ub=np.concatenate([wanted + noise, noise - wanted]),
                method="highs-ds",
            )
            if found.x is None:
                return None
            weights = found.x
        # Once it is known which tokens are seen, there are far fewer unknowns, and no freedom is left.
        columns = [head * count + token for head in range(heads) for token in sorted({*seen, number})]
        exact = np.zeros(heads * count)
        exact[columns] = nnls(equations[:, columns], wanted, maxiter=20 * heads * count)[0]
        own: Values = exact.reshape(heads, count)
        return own

    def _distances(self, number: int, tokens: list[int], weights: Values) -> list[float]:
        """How far after a token each of those that it sees stands; right for those that occur once in a sentence."""
        apart = np.log(weights[:, tokens].clip(1e-9)) - self._scores[:, number, tokens]
        apart -= apart[:, [tokens.index(number)]]  # a token is no distance from itself
        biases = self._biases - self._biases[:, [FARTHEST]]
        misfits = np.abs(apart[:, :, None] - biases[:, None, :]).sum(axis=0)
        misfits[:, FARTHEST] = np.inf  # nor is another
        nearest = misfits.argmin(axis=1) - FARTHEST
        return [0.0 if token == number else float(n) for token, n in zip(tokens, nearest, strict=True)]

    def _split(self, matrix: Tensor) -> tuple[Tensor, ...]:
        return matrix.chunk(self.heads, dim=1)


def _biases(attention: Any) -> Values:
    """What the attention adds to scores, by head and by distance from -FARTHEST to FARTHEST."""
    whole: Tensor = attention.compute_bias(FARTHEST + 1, FARTHEST + 1)[0].double()
    biases: Values = torch.cat([whole[:, 1:, 0].flip(1), whole[:, 0, :]], dim=1).cpu().numpy()
    return biases


def _matrix(part: Part) -> Tensor:
    weight: Any = part.module.weight
    return part.of(weight.detach()).double()
