"""Which sentences a gradient is made of, by how much smaller it is without them.

A matrix of the gradient is a sum of products, one for every token, and its volume (the determinant of its square)
grows with every product that is independent of the others. Without a sentence that is in it the volume is smaller,
without one that is not it is larger, and of a sentence and all that differ from it in a token, the right one leaves
least. That needs no rank to spare: it holds while there are several times more tokens than dimensions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from gradleak.attacks.soft.coefficients import portions
from gradleak.attacks.spans.certify import mixing_parts
from gradleak.attacks.spans.spans import span_of
from gradleak.models.adapter import Part
from gradleak.models.hooks import of_this_thread
from gradleak.models.text import TextModel

# What is added to the square of a matrix, relative to it: rounding, below which nothing is told.
ROUNDING = 1e-15
# Tokens that go through the model, there and back, at once.
AT_ONCE = 768
# Numbers of predictions that are tried, each so many times the one before; then all around the likeliest, as a share.
MOST_PREDICTIONS, FACTOR, AROUND = 20_000, 1.01, 0.02

# What a sentence adds to each matrix at a weight of one: its inputs and its output gradients, (tokens, …).
Products = list[tuple[Tensor, Tensor]]


def watched(model: TextModel, tensors: Mapping[str, Tensor]) -> list[list[Part]]:
    """The matrices whose volume is looked at: those after the first attention."""
    parts = [part for part in mixing_parts(model, 0) if part.weight_name in tensors]
    return [parts] if parts else []


class Batches:
    """What sentences add to the gradients of some matrices, many sentences at once."""

    def __init__(self, model: TextModel, groups: Sequence[Sequence[Part]]) -> None:
        self.model, self.groups = model, groups

    def products(self, sentences: Sequence[Sequence[int]]) -> list[Products]:
        """What each sentence adds, by the sum of the losses of its predictions."""
        found: dict[int, Products] = {}
        for some in portions(sentences, AT_ONCE):
            rows = [sentences[number] for number in some]
            found.update(zip(some, self._of(rows), strict=True))
        return [found[number] for number in range(len(sentences))]

    def _of(self, rows: Sequence[Sequence[int]]) -> Iterator[Products]:
        batch = self.model.pad(rows)
        seen: dict[nn.Module, Tensor] = {}
        made: dict[nn.Module, Tensor] = {}

        def remember(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            seen[module], made[module] = inputs[0].detach(), output

        modules = list(dict.fromkeys(part.module for group in self.groups for part in group))
        hooks = [module.register_forward_hook(of_this_thread(remember)) for module in modules]
        try:
            predicted = int(batch.mask[:, 1:].sum())
            loss = self.model.loss(batch.ids, ids=batch.ids, mask=batch.mask) * predicted
        finally:
            for hook in hooks:
                hook.remove()
        gradients = torch.autograd.grad(loss, [made[module] for module in modules])
        slopes = dict(zip(modules, gradients, strict=True))
        shape = (len(rows), batch.ids.shape[1], -1)
        inputs = [seen[group[0].module].reshape(shape).double() for group in self.groups]
        outputs = [
            torch.cat([part.block.of(slopes[part.module].flatten(0, -2).T).T for part in group], dim=1)
            .reshape(shape)
            .double()
            for group in self.groups
        ]
        for number, row in enumerate(rows):
            size = len(row) - 1  # nothing is predicted from the last
            both = zip(inputs, outputs, strict=True)
            yield [(states[number, :size], slope[number, :size]) for states, slope in both]


@dataclass
class Volume:
    """What is left of some matrices, and the logarithm of its volume."""

    whole: list[Tensor]
    weight: float = 0.0
    """Of a prediction in the mean."""
    taken: dict[tuple[int, ...], Products] = field(default_factory=dict)
    _sums: list[Tensor] = field(default_factory=list)
    _left: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    @staticmethod
    def of(
        model: TextModel, tensors: Mapping[str, Tensor], groups: Sequence[Sequence[Part]], weight: float = 0.0
    ) -> Volume:
        whole = [torch.cat([part.of(tensors[part.weight_name]).double() for part in group]) for group in groups]
        made = Volume(whole, weight, _sums=[torch.zeros_like(matrix) for matrix in whole])
        made._settle()
        return made

    def gains(self, products: Sequence[Products]) -> list[float]:
        """How much smaller the volume is without each of some sentences: the larger, the surer it is in there."""
        return [_gain(self._inside(each), self.weight) for each in products]

    def weakest(self, products: Sequence[Products]) -> list[float]:
        """The same without a single token of each, that of which it falls least: below zero, it was hardly there."""
        inside = [self._inside(each) for each in products]
        return [float(torch.stack([_falls(own, self.weight) for own in each]).sum(dim=0).min()) for each in inside]

    def add(self, tokens: tuple[int, ...], products: Products) -> None:
        """Take a sentence out of what is left."""
        self._change(products, 1.0)
        self.taken[tokens] = products
        self._settle()

    def put_back(self, tokens: tuple[int, ...]) -> Products:
        """Undo this."""
        products = self.taken.pop(tokens)
        self._change(products, -1.0)
        self._settle()
        return products

    def weigh(self, products: Sequence[Products]) -> None:
        """Find the weight: the one at which most is gained by those of some sentences that gain anything."""
        inside = [self._inside(each) for each in products]

        def gain(count: int) -> float:
            return sum(max(0.0, _gain(each, 1 / count)) for each in inside)

        tried = [1]
        while tried[-1] < MOST_PREDICTIONS:
            tried.append(max(tried[-1] + 1, round(tried[-1] * FACTOR)))
        self.weight = 1 / max(_near(max(tried, key=gain)), key=gain)

    def reweigh(self) -> None:
        """Correct the weight: one over the whole number of predictions near the present with which least is left."""
        squares = [(w.T @ w, w.T @ s + s.T @ w, s.T @ s) for w, s in zip(self.whole, self._sums, strict=True)]

        def volume(count: int) -> float:
            own = 1 / count
            return sum(_log_det(a - own * b + own**2 * c) for a, b, c in squares)

        before, count = 0, round(1 / self.weight)
        while count != before:
            before, count = count, min(_near(count), key=volume)
        self.weight = 1 / count
        self._settle()

    @property
    def rank_shows(self) -> bool:
        """Whether so much is taken out that what is left has fewer tokens than dimensions."""
        return any(span_of([left]) is not None for left, _ in self._left)

    def _change(self, products: Products, sign: float) -> None:
        self._sums = [
            own + sign * slopes.T @ states for own, (states, slopes) in zip(self._sums, products, strict=True)
        ]

    def _settle(self) -> None:
        self._left = []
        for whole, own in zip(self.whole, self._sums, strict=True):
            left = whole - self.weight * own
            self._left.append((left, torch.linalg.cholesky(_floored(left.T @ left, whole))))

    def _inside(self, products: Products) -> list[tuple[Tensor, Tensor]]:
        """What a sentence's gain depends on beside its weight."""
        found = []
        for (left, root), (states, slopes) in zip(self._left, products, strict=True):
            columns = torch.cat([left.T @ slopes.T, states.T], dim=1)
            found.append((columns.T @ torch.cholesky_solve(columns, root), slopes @ slopes.T))
        return found


def _gain(inside: Sequence[tuple[Tensor, Tensor]], weight: float) -> float:
    """How much smaller the volume is without a sentence of this weight.

    The square of (left - weight · slopesᵀ states) is the old square plus a product of few columns, so that the ratio
    of the determinants is a small determinant.
    """
    total = 0.0
    for own, slopes in inside:
        count = len(slopes)
        eye = torch.eye(count, dtype=own.dtype, device=own.device)
        upper = torch.cat([torch.zeros_like(eye), -weight * eye], dim=1)
        lower = torch.cat([-weight * eye, weight**2 * slopes], dim=1)
        whole = torch.eye(2 * count, dtype=own.dtype, device=own.device) + torch.cat([upper, lower]) @ own
        total -= float(torch.linalg.slogdet(whole).logabsdet)
    return total


def _falls(inside: tuple[Tensor, Tensor], weight: float) -> Tensor:
    """How much smaller the volume is without each token of a sentence by itself."""
    own, slopes = inside
    count = len(slopes)
    above, below, beside = own.diagonal()[:count], own.diagonal()[count:], own.diagonal(offset=count)
    left = (1 - weight * beside).square() + weight**2 * below * (slopes.diagonal() - above)
    return -left.abs().clamp_min(1e-300).log()


def _near(count: int) -> range:
    reach = max(3, round(AROUND * count))
    return range(max(1, count - reach), count + reach + 1)


def _floored(square: Tensor, whole: Tensor) -> Tensor:
    floor = ROUNDING * float(whole.square().sum())
    return square + max(floor, 1e-300) * torch.eye(len(square), dtype=square.dtype, device=square.device)


def _log_det(square: Tensor) -> float:
    return float(torch.linalg.slogdet(square).logabsdet)
