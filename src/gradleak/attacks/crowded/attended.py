"""What single tokens attended to in a language model's first layer, however many tokens the batch has.

A first layer without learned positions sees one known vector of each different token. While these are fewer than its
dimensions, its gradients can be solved for the summed output gradients of each of them, and a token that occurs once
shows its own. The gradient at its query is a sum of the keys of all tokens up to it, each turned by how far back it
stands, and of nothing else; that at its key is such a sum of the queries of all tokens from it on. How much of each
is in the sum depends on the whole model, but which keys and queries can be is known from the tokens alone. So the
beginning of a sentence can be tested at each of its tokens that occurs once, and so can its end, without running the
model: the right tokens leave nothing over, and hardly anything else does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gradleak.attacks.soft.coefficients import solvable
from gradleak.attacks.soft.rehearsal import gradient_of
from gradleak.attacks.spans.candidates import first_inputs
from gradleak.attacks.spans.first_layer import bias_of, weight_of
from gradleak.models.text import TextModel

# The share of a gradient that may be left over. Seen on smollm2, a batch of 32: right beginnings leave 7e-5 at
# most, those with one other token 1e-2 and more in nine of ten.
LEFT_OVER = 5e-4
# Tokens whose gradients are smaller than this, relative to the median, show rounding.
LEAST_SIZE = 1e-4
# What must be left of a head's dimensions beside what a sentence explains, for a test to mean anything.
SPARE = 8
# Tokens of the sentence on which it is tried whether a model computes as is assumed here.
TRIED = 6

Numbers = Sequence[int]


class Attended:
    """Tests sentences, given as numbers of tokens in the order of `tokens`."""

    def __init__(self, model: TextModel, tensors: Mapping[str, Tensor], tokens: Sequence[int], length: int) -> None:
        self.tokens = list(tokens)
        inputs = first_inputs(model, torch.tensor(self.tokens, device=model.device), 1)[:, 0].double()
        parts = model.adapter.parts[0]
        query, key = parts["query"], parts["key"]
        heads = int(model.module.config.num_attention_heads)
        solve = torch.linalg.pinv(inputs.T)
        seen = [inputs @ weight_of(part).T + bias_of(part) for part in (query, key)]
        back = [solve @ part.of(tensors[part.weight_name]).double().T for part in (query, key)]
        self.width = seen[0].shape[1] // heads
        self.groups = seen[1].shape[1] // self.width
        self.length = length = min(length, model.max_length)
        turn = _Turn(model, length, self.width)
        # (tokens, positions, groups, numbers); queries and what comes back to them have several heads in each group.
        self.keys, self.to_keys = (turn(each.unflatten(1, (self.groups, -1))) for each in (seen[1], back[1]))
        shape = (self.groups, heads // self.groups, self.width)
        self.queries, self.to_queries = (turn(each.unflatten(1, shape)) for each in (seen[0], back[0]))
        self.sizes, self.key_sizes = (own.norm(dim=1).clamp_min(1e-300) for own in back)
        self.clear = self.sizes > LEAST_SIZE * self.sizes.median()

    @property
    def longest(self) -> int:
        """Tokens of the longest beginning that can be tested."""
        return min(self.length, self.width - SPARE)

    def left_over(self, sentence: Numbers) -> float:
        """What the tokens of a beginning leave over of the gradient at the last one's query, as a share of it."""
        last = len(sentence) - 1
        keys = self.keys[list(sentence), range(len(sentence))]
        # What attention gives back adds up to zero, so that only differences of keys count.
        basis = _basis((keys[:-1] - keys[-1:]).permute(1, 2, 0))
        back = self.to_queries[sentence[-1], last]
        return float((back - (back @ basis) @ basis.mT).norm() / self.sizes[sentence[-1]])

    def begins(self, sentence: Numbers) -> bool:
        """Whether these tokens are how a sentence of the batch begins, if the last occurs once.

        Tokens that no longer matter pass every test, so without the first the same must fail.
        """
        if not 1 < len(sentence) <= self.longest or not bool(self.clear[sentence[-1]]):
            return False
        return self.left_over(sentence) < LEFT_OVER and (
            len(sentence) == 2 or self.left_over(sentence[1:]) >= LEFT_OVER
        )

    def next_ones(self, sentence: Numbers) -> Tensor:
        """What a beginning leaves over at each token that may come next, (tokens,)."""
        place, outside = len(sentence), self._outside(sentence)
        own = torch.einsum("tgd,gde->tge", self.keys[:, place], outside)
        back = torch.einsum("tghd,gde->tghe", self.to_queries[:, place], outside)
        along = (back * own[:, :, None]).sum(dim=-1).square() / own.square().sum(dim=-1).clamp_min(1e-20)[..., None]
        return self._share(back.square().sum(dim=(1, 2, 3)) - along.sum(dim=(1, 2)))

    def next_twos(self, sentence: Numbers) -> Tensor:
        """The same at each token that may come after the next, for every next one, (next, tokens)."""
        place, outside = len(sentence), self._outside(sentence)
        one, two = (torch.einsum("tgd,gde->gte", self.keys[:, place + n], outside) for n in (0, 1))
        back = torch.einsum("tghd,gde->ghte", self.to_queries[:, place + 1], outside)
        ones, twos, both = one.square().sum(dim=-1), two.square().sum(dim=-1), one @ two.mT
        with_one, with_two = one[:, None] @ back.mT, (back * two[:, None]).sum(dim=-1)[:, :, None]
        size = (ones[:, :, None] * twos[:, None] - both.square()).clamp_min(1e-12)
        explained = (
            with_one.square() * twos[:, None, None]
            - 2 * with_one * with_two * both[:, None]
            + with_two.square() * ones[:, None, :, None]
        ) / size[:, None]
        return self._share(back.square().sum(dim=(0, 1, 3)) - explained.sum(dim=(0, 1)))

    def left_over_behind(self, sentence: Numbers, place: int) -> float:
        """What the tokens from a place on leave over of the gradient at the key of the token there."""
        basis = self._basis_behind(sentence, place)
        back = self.to_keys[sentence[place], place][:, None]
        return float((back - (back @ basis) @ basis.mT).norm() / self.key_sizes[sentence[place]])

    def ends(self, sentence: Numbers, place: int) -> bool:
        """Whether no other token comes after these but one that is only predicted, by a token that occurs once."""
        asked = (len(sentence) - place) * self.queries.shape[3]
        return asked <= self.width - SPARE and self.left_over_behind(sentence, place) < LEFT_OVER

    def _basis_behind(self, sentence: Numbers, place: int) -> Tensor:
        rest = list(sentence)[place:]
        queries = self.queries[rest, range(place, len(sentence))]  # (rest, groups, heads, numbers)
        return _basis(queries.permute(1, 3, 0, 2).flatten(2))

    def _outside(self, sentence: Numbers) -> Tensor:
        """Takes away what keys of a beginning explain, (groups, numbers, numbers)."""
        basis = _basis(self.keys[list(sentence), range(len(sentence))].permute(1, 2, 0))
        return torch.eye(self.width, dtype=basis.dtype, device=basis.device) - basis @ basis.mT

    def _share(self, squares: Tensor) -> Tensor:
        return torch.where(self.clear, squares.clamp_min(0).sqrt() / self.sizes, torch.inf)


class _Turn:
    """Turns numbers of heads by position as the model does: (tokens, …, numbers) to (tokens, positions, …)."""

    def __init__(self, model: TextModel, length: int, width: int) -> None:
        base = model.module.base_model
        places = torch.arange(length, device=model.device)[None]
        angles = base.rotary_emb(torch.zeros(1, 1, width, device=model.device), places)
        self.cos, self.sin = (each[0].double() for each in angles)  # (positions, numbers that turn)

    def __call__(self, numbers: Tensor) -> Tensor:
        size = self.cos.shape[-1]
        shape = (len(self.cos), *(1,) * (numbers.dim() - 2), size)
        cos, sin = self.cos.reshape(shape), self.sin.reshape(shape)
        turned, rest = numbers[:, None, ..., :size], numbers[:, None, ..., size:]
        one, other = turned.chunk(2, dim=-1)
        turned = turned * cos + torch.cat([-other, one], dim=-1) * sin
        return torch.cat([turned, rest.expand(*turned.shape[:-1], -1)], dim=-1)


def _basis(columns: Tensor) -> Tensor:
    """An orthonormal basis of the columns of each of some matrices, (…, numbers, columns)."""
    return torch.linalg.qr(columns).Q


def attention_shows(model: TextModel, tensors: Mapping[str, Tensor], tokens: Sequence[int]) -> bool:
    """Whether single tokens can be tested: by what was sent, and as a made-up sentence shows."""
    parts = model.adapter.parts[0] if model.adapter.parts else {}
    if not solvable(model, tensors, tokens) or not hasattr(model.module.base_model, "rotary_emb"):
        return False
    names = [parts[role].weight_name for role in ("query", "key") if role in parts]
    if len(names) < 2 or any(name not in tensors for name in names):
        return False
    made_up = [token for token in tokens if bool(model.text_tokens[token])][:TRIED]
    if len(made_up) < TRIED:
        return False
    try:
        own = Attended(model, gradient_of(model, [made_up], list(dict.fromkeys(names))), made_up, TRIED)
        right = list(range(TRIED - 1))  # of the last nothing comes back
        return own.begins(right) and own.ends(right, TRIED // 2)
    except (RuntimeError, TypeError, AttributeError):  # positions enter in another way
        return False
