"""Proof that a sentence was in a batch, by the coefficients of its tokens in the first layer's gradient.

Once the tokens of a batch are known, the first layer's gradient can be solved for the output gradients that belong to
each of them. Those of a token that stands in a single sentence come from that sentence alone, and they depend on all
of it: on what came before by attention, and on every later prediction by the loss. So if the sentence's own gradient
has the same coefficients, up to its weight in the batch's mean, the sentence is right as a whole.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.attacks.spans.candidates import first_inputs
from gradleak.attacks.spans.certify import attention_parts
from gradleak.models.text import TextModel

# How far coefficients may be off, relative to their size, and how far the weights that tokens show from each other.
# Measured on smollm2: 1e-6 to 1e-5 in right sentences, 9e-3 and more in those that lack only an expected full stop.
MISFIT, APART = 1e-4, 1e-3
# Tokens of a beginning that is looked at by itself.
BEGINNING = 4
# Tokens that must agree, and independent numbers that each must have: fewer could agree by chance.
LEAST_TOKENS, LEAST_NUMBERS = 2, 6


@dataclass(frozen=True)
class Match:
    """How a sentence's coefficients compare: its weight in the mean, how many tokens agree, and how alike each is.

    `cosines` are of its tokens, in the order in which they first occur.
    """

    weight: float
    agreeing: int
    cosines: tuple[float, ...]

    @property
    def likeness(self) -> float:
        """The mean cosine over its tokens: it rises towards the right sentence, and is 1 only there."""
        return sum(self.cosines) / max(1, len(self.cosines))

    @property
    def reach(self) -> float:
        """How far it is alike from its beginning on: the largest sum of what its cosines have above a half."""
        sums = itertools.accumulate(cosine - 0.5 for cosine in self.cosines)
        return max(sums, default=0.0)

    @property
    def rank(self) -> tuple[bool, float]:
        """Proved before all others, then by likeness."""
        return self.proved, self.likeness

    @property
    def beginning(self) -> float:
        """The likeness of the beginning that is most alike: right even if the sentence goes on past its end."""
        sums = list(itertools.accumulate(self.cosines))
        return max((total / n for n, total in enumerate(sums, 1) if n >= BEGINNING), default=self.likeness)

    @property
    def proved(self) -> bool:
        return self.agreeing >= LEAST_TOKENS


class Coefficients:
    """Solves the first layer's gradient for what belongs to each token of a batch."""

    def __init__(self, model: TextModel, tensors: Mapping[str, Tensor], tokens: Sequence[int]) -> None:
        self.model = model
        self.names = [
            name
            for part in attention_parts(model, 0)
            for name in part.tensor_names
            if name in tensors and ".lora_B." not in name
        ]
        self.tokens = {token: place for place, token in enumerate(tokens)}
        ids = torch.tensor(list(tokens), device=model.device)
        inputs = first_inputs(model, ids, 1)[:, 0].double()
        self._solve = torch.linalg.pinv(inputs.T)
        self.update = self.of(tensors)

    def of(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """The coefficients of every token, (tokens, numbers)."""
        return self._solve @ torch.cat([tensors[name].double() for name in self.names]).T

    def match(self, sentence: Sequence[int]) -> Match:
        """How well a sentence explains the coefficients of its tokens."""
        batch = self.model.pad([list(sentence)])
        loss = self.model.loss(batch.ids, ids=batch.ids, mask=batch.mask) * (len(sentence) - 1)
        parameters = self.model.parameters()
        gradients = torch.autograd.grad(loss, [parameters[name] for name in self.names])
        own = self.of(dict(zip(self.names, gradients, strict=True)))
        places = list(dict.fromkeys(self.tokens[token] for token in sentence[:-1] if token in self.tokens))
        mine, seen = own[places], self.update[places]
        weights = (mine * seen).sum(dim=1) / mine.square().sum(dim=1).clamp_min(1e-300)
        misfits = (seen - weights[:, None] * mine).norm(dim=1) / seen.norm(dim=1).clamp_min(1e-300)
        fine = (misfits < MISFIT) & (weights > 0)
        cosines = tuple(torch.nn.functional.cosine_similarity(mine, seen, dim=1).tolist())
        if not bool(fine.any()) or own.shape[1] < LEAST_NUMBERS:
            return Match(0.0, 0, cosines)
        # The weight is that of most: tokens that other sentences have too fit by no weight, or by another.
        agree = ((weights[fine][:, None] / weights[fine][None]).log().abs() < APART).sum(dim=1)
        best = int(agree.argmax())
        alike = (weights[fine] / weights[fine][best]).log().abs() < APART
        return Match(float(weights[fine][alike].median()), int(agree[best]), cosines)
