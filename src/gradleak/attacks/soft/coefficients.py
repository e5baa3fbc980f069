"""Proof that a sentence was in a batch, by the coefficients of its tokens in the first layer's gradient.

Once the tokens of a batch are known, the first layer's gradient can be solved for the output gradients that belong to
each of them. Those of a token that stands in a single sentence come from that sentence alone, and they depend on all
of it: on what came before by attention, and on every later prediction by the loss. So if the sentence's own gradient
has the same coefficients, up to its weight in the batch's mean, the sentence is right as a whole.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gradleak.attacks.spans.candidates import first_inputs
from gradleak.attacks.spans.certify import attention_parts
from gradleak.models.adapter import Part
from gradleak.models.hooks import of_this_thread
from gradleak.models.text import TextModel

# How far coefficients may be off, relative to their size, and how far the weights that tokens show from each other.
# Measured on smollm2: 1e-6 to 1e-5 in right sentences, 9e-3 and more in those that lack only an expected full stop.
MISFIT, APART = 1e-4, 1e-3
# Tokens of a beginning that is looked at by itself.
BEGINNING = 4
# Tokens that must agree, and independent numbers that each must have: fewer could agree by chance.
LEAST_TOKENS, LEAST_NUMBERS = 2, 6
# Tokens that go through the model, there and back, at once.
AT_ONCE = 1024


@dataclass(frozen=True)
class Match:
    """How a sentence's coefficients compare: its weight in the mean, how many tokens agree, and how alike each is.

    `cosines` are of its tokens, in the order in which they first occur, and `lags` how many predictions of the
    sentence come after the last that such a token makes itself: those add to its coefficients too.
    """

    weight: float
    agreeing: int
    cosines: tuple[float, ...]
    lags: tuple[int, ...] = ()

    @property
    def likeness(self) -> float:
        """The mean cosine over its tokens: it rises towards the right sentence, and is 1 only there."""
        return sum(self.cosines) / max(1, len(self.cosines))

    @property
    def support(self) -> float:
        """What its tokens have above half a cosine, added up: of two that are as alike, the longer has more."""
        return sum(cosine - 0.5 for cosine in self.cosines)

    @property
    def rank(self) -> tuple[bool, float]:
        """Proved before all others, then by support."""
        return self.proved, self.support

    @property
    def beginning(self) -> float:
        """The likeness of the beginning that is most alike: right even if the sentence goes on past its end."""
        sums = list(itertools.accumulate(self.cosines))
        return max((total / n for n, total in enumerate(sums, 1) if n >= BEGINNING), default=self.likeness)

    @property
    def proved(self) -> bool:
        return self.agreeing >= LEAST_TOKENS


class Coefficients:
    """Solves the first layer's gradient for what belongs to each token of a batch.

    With more tokens than dimensions it takes someone else to `solve` it, for one `part` of the layer, and to say how
    far off the coefficients of each token may be.
    """

    def __init__(
        self,
        model: TextModel,
        tensors: Mapping[str, Tensor],
        tokens: Sequence[int],
        part: Part | None = None,
        solve: Callable[[Tensor], Tensor] | None = None,
        misfits: Tensor | None = None,
    ) -> None:
        self.model, self._part = model, part
        self.names = _names(model, tensors) if part is None else [part.weight_name]
        self.tokens = {token: place for place, token in enumerate(tokens)}
        if solve is None:
            ids = torch.tensor(list(tokens), device=model.device)
            solve = torch.linalg.pinv(first_inputs(model, ids, 1)[:, 0].double().T).__matmul__
        self._solve = solve
        same = torch.full((len(tokens),), MISFIT, dtype=torch.float64, device=model.device)
        self._misfits = same if misfits is None else misfits
        self._modules = [_owner(model, name) for name in self.names]
        self.update = self.of(tensors)

    def of(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """The coefficients of every token, (tokens, numbers)."""
        whole = [tensors[name].double() for name in self.names]
        return self._solve(torch.cat(whole if self._part is None else [self._part.of(whole[0])]).T)

    def match(self, sentence: Sequence[int]) -> Match:
        """How well a sentence explains the coefficients of its tokens."""
        return self.matches([sentence])[0]

    def matches(self, sentences: Sequence[Sequence[int]]) -> list[Match]:
        """The same for many sentences, which go through the model together."""
        found: dict[int, Match] = {}
        for some in portions(sentences):
            for number, own in zip(some, self._at_positions([sentences[n] for n in some]), strict=True):
                found[number] = self._compared(sentences[number], own)
        return [found[number] for number in range(len(sentences))]

    def _at_positions(self, sentences: Sequence[Sequence[int]]) -> Tensor:
        """What every position of every sentence adds to the coefficients of its token, (sentences, positions, …)."""
        batch = self.model.pad(sentences)
        seen: list[Tensor] = []
        hooks = [
            each.register_forward_hook(of_this_thread(lambda _, inputs, out: seen.append(out)))
            for each in self._modules
        ]
        try:
            loss = self.model.loss(batch.ids, ids=batch.ids, mask=batch.mask) * int(batch.mask[:, 1:].sum())
        finally:
            for hook in hooks:
                hook.remove()
        back = torch.cat(torch.autograd.grad(loss, seen), dim=-1).double()
        return back if self._part is None else self._part.block.of(back, dim=-1)

    def _compared(self, sentence: Sequence[int], positions: Tensor) -> Match:
        places = {token: n for n, token in enumerate(dict.fromkeys(t for t in sentence[:-1] if t in self.tokens))}
        mine = torch.zeros(len(places), positions.shape[1], dtype=positions.dtype, device=positions.device)
        lags = [0] * len(places)
        for position, token in enumerate(sentence[:-1]):
            if token in places:
                mine[places[token]] += positions[position]
                lags[places[token]] = len(sentence) - 2 - position
        numbers = [self.tokens[token] for token in places]
        seen = self.update[numbers]
        weights = (mine * seen).sum(dim=1) / mine.square().sum(dim=1).clamp_min(1e-300)
        misfits = (seen - weights[:, None] * mine).norm(dim=1) / seen.norm(dim=1).clamp_min(1e-300)
        fine = (misfits < self._misfits[numbers]) & (weights > 0)
        cosines = tuple(torch.nn.functional.cosine_similarity(mine, seen, dim=1).tolist())
        if not bool(fine.any()) or mine.shape[1] < LEAST_NUMBERS:
            return Match(0.0, 0, cosines, tuple(lags))
        # The weight is that of most: tokens that other sentences have too fit by no weight, or by another.
        agree = ((weights[fine][:, None] / weights[fine][None]).log().abs() < APART).sum(dim=1)
        best = int(agree.argmax())
        alike = (weights[fine] / weights[fine][best]).log().abs() < APART
        return Match(float(weights[fine][alike].median()), int(agree[best]), cosines, tuple(lags))


def solvable(model: TextModel, tensors: Mapping[str, Tensor], tokens: Sequence[int] | Tensor) -> bool:
    """Whether the first layer's gradient is there and tells the coefficients of so many tokens apart."""
    if model.adapter.positions is not None or not len(tokens) or len(tokens) >= model.width:
        return False
    return bool(_names(model, tensors))


def _names(model: TextModel, tensors: Mapping[str, Tensor]) -> list[str]:
    """The tensors whose rows are sums of what the first layer saw."""
    names = [name for part in attention_parts(model, 0) for name in part.tensor_names]
    return [name for name in names if name in tensors and ".lora_B." not in name]


def portions(sentences: Sequence[Sequence[int]], at_once: int = AT_ONCE) -> Iterator[list[int]]:
    """The numbers of sentences that go through the model at once, those of like length together."""
    portion: list[int] = []
    for number in sorted(range(len(sentences)), key=lambda n: len(sentences[n])):
        if portion and (len(portion) + 1) * len(sentences[number]) > at_once:
            yield portion
            portion = []
        portion.append(number)
    if portion:
        yield portion


def _owner(model: TextModel, name: str) -> nn.Module:
    """The module that has the parameter of this name."""
    wanted = model.parameters()[name]
    return next(m for m in model.module.modules() if any(own is wanted for own in m.parameters(recurse=False)))
