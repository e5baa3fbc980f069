"""Which tokens stand in one sentence, read off a span: attention adds to a token what others of its sentence hold.

What a layer's second half sees of a token is its embedding plus, for every head, a mean of the values of its sentence's
tokens, weighed by the attention, all of it scaled to a fixed size and by a weight for each dimension. It lies in the
span of that part's gradient. The embeddings and values of all tokens of the batch are known, so the weights are the
solution of linear equations: not negative, adding up to 1 for every head, and zero for tokens of other sentences. Where
tokens occur in several sentences there are further solutions, which see more tokens; the one that sees fewest is right.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from gradleak.attacks.spans.candidates import TOLERANCE, first_inputs
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


class Companions:
    """The tokens that each token of a batch is attended to beside, by the span of what a layer's second half sees."""

    def __init__(self, model: TextModel, part: Part, span: Span, tokens: Tensor) -> None:
        """`part` is a part of the first layer that the span is of, `tokens` are all tokens of the batch."""
        self.tokens = tokens
        heads = int(model.module.config.num_attention_heads)
        value, out = (model.adapter.parts[0].get(role) for role in ("value", "attention_out"))
        self.usable = span.map is None and 0 < heads * len(tokens) <= MOST_UNKNOWN
        if not self.usable or value is None or out is None:
            return
        with torch.no_grad():
            own = model.embed(tokens).double()
            values = first_inputs(model, tokens, 1)[:, 0].double() @ _matrix(value).T
            per_head = zip(values.chunk(heads, dim=1), _matrix(out).chunk(heads, dim=1), strict=True)
            added = torch.stack([value @ matrix.T for value, matrix in per_head])
            ids = tokens[:, None]
            seen = Probe(model, [part])(input_ids=ids, mask=torch.ones_like(ids))[0][:, 0].double()
        alone = own + added.sum(dim=0)  # a token that sees nothing but itself
        weight = (seen / alone * alone.square().mean(dim=1, keepdim=True).sqrt()).median(dim=0).values
        misfit = F.normalize(alone * weight, dim=1) - F.normalize(seen, dim=1)
        self.usable = bool(misfit.norm(dim=1).max() < LIKE)
        outside = span.complement.to(own) * weight
        self._own = (own @ outside.T).cpu().numpy()
        self._added = (added.flatten(0, 1) @ outside.T).cpu().numpy().T
        self._heads = heads
        self._noise = (TOLERANCE * span.floors(seen) * (alone * weight).norm(dim=1)).cpu().numpy()

    def of(self, number: int) -> Tensor | None:
        """The tokens that the token of this number sees, itself included; None if no weights fit."""
        from scipy.optimize import linprog, nnls

        count, heads = len(self.tokens), self._heads
        ones = np.kron(np.eye(heads), np.ones((1, count)))
        wanted = np.concatenate([-self._own[number], np.ones(heads)])
        equations = np.concatenate([self._added, ones])
        noise = np.concatenate(
            [np.full(len(self._own[number]), self._noise[number]), np.full(heads, LEAST_WEIGHT**2)]
        )
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
        return self.tokens[sorted({*seen, number})]


def _matrix(part: Part) -> Tensor:
    weight: Tensor = part.of(part.module.weight.detach())
    return weight.double()
