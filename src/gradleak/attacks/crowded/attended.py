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

import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

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
# Where rounding shows, by what no token explains, right ones leave so many times as much of it at most (seen: 2.1
# times, of some hundreds), and what is less than the second is that of the states themselves. It shows in so many
# dimensions.
ROUNDINGS, LEAST_ROUNDING, SHOWN = 3.0, 1e-5, 4
# Tokens whose gradients are smaller than this, relative to the median, show rounding.
LEAST_SIZE = 1e-4
# What is wrong leaves so many times as much over.
CLEARLY = 3.0
# Tokens of which more than this share may be wrong prove nothing.
CLEAREST = 5e-3
# What must be left of a head's dimensions beside what a sentence explains, for a test to mean anything.
SPARE = 8
# Places for which keys and what came back to queries are kept turned.
TURNED = 4
# Tokens of the sentence on which it is tried whether a model computes as is assumed here.
TRIED = 6

Numbers = Sequence[int]


@dataclass(frozen=True)
class Backs:
    """What came back to the query of each token and the share that may be left over of it; of keys too, if known.

    Some tokens may be known to stand within no sentence, and some need not be asked; both masks are of all otherwise.
    """

    query: Tensor
    allowed: Tensor
    key: Tensor | None = None
    allowed_key: Tensor | None = None
    inner: Tensor | None = None
    asked: Tensor | None = None


class Attended:
    """Tests sentences, given as numbers of tokens in the order of `tokens`."""

    def __init__(self, model: TextModel, tensors: Mapping[str, Tensor], tokens: Sequence[int], length: int) -> None:
        self.tokens = list(tokens)
        self.inputs = first_inputs(model, torch.tensor(self.tokens, device=model.device), 1)[:, 0].double()
        parts = model.adapter.parts[0]
        query, key = parts["query"], parts["key"]
        heads = int(model.module.config.num_attention_heads)
        seen = [self.inputs @ weight_of(part).T + bias_of(part) for part in (query, key)]
        self.gradients = [part.of(tensors[part.weight_name]).double().T for part in (query, key)]
        self.width = seen[0].shape[1] // heads
        self.groups = seen[1].shape[1] // self.width
        self.length = min(length, model.max_length)
        self.turn = Turn(model, self.length, self.width)
        # Queries, and what comes back to them, have several heads in each group.
        self.shape = (self.groups, heads // self.groups, self.width)
        self.queries, self.keys = seen[0].unflatten(1, self.shape), seen[1].unflatten(1, (self.groups, self.width))
        if len(self.tokens) < len(self.inputs[0]):
            self.see(self._solved())

    def _solved(self) -> Backs:
        """By fewer tokens than dimensions: what is right leaves rounding."""
        solve = torch.linalg.pinv(self.inputs.T)
        query, key = (solve @ gradient for gradient in self.gradients)
        allowed = [self._rounding(solve, *each) for each in zip(self.gradients, (query, key), strict=True)]
        return Backs(query, allowed[0], key, allowed[1])

    def _rounding(self, solve: Tensor, gradient: Tensor, rows: Tensor) -> Tensor:
        """The share of what came back to each token that rounding can be."""
        spare = len(gradient) - len(rows)
        if spare < SHOWN:
            return torch.full_like(rows[:, 0], LEFT_OVER)
        size = (gradient - self.inputs.T @ rows).norm() / spare**0.5
        share = solve.norm(dim=1) * size / rows.norm(dim=1).clamp_min(1e-300)
        return (ROUNDINGS * share).clamp_min(LEAST_ROUNDING)

    def see(self, backs: Backs) -> None:
        """Take this for what came back to each token."""
        self.to_queries = backs.query.unflatten(1, self.shape)
        self.to_keys = None if backs.key is None else backs.key.unflatten(1, (self.groups, self.width))
        self.sizes, self.allowed = backs.query.norm(dim=1).clamp_min(1e-300), backs.allowed
        self._allowed_key = backs.allowed_key
        # Many beginnings of the same length are asked one after the other.
        self._turned_keys = functools.lru_cache(maxsize=TURNED)(functools.partial(self.turn, self.keys))
        self._turned_backs = functools.lru_cache(maxsize=TURNED)(functools.partial(self.turn, self.to_queries))
        every = torch.ones_like(self.sizes, dtype=torch.bool)
        self.inner = (every if backs.inner is None else backs.inner).nonzero()[:, 0]
        self.clear = (self.sizes > LEAST_SIZE * self.sizes.median()) & (self.allowed <= CLEAREST)
        self.clear &= every if backs.asked is None else backs.asked

    @property
    def longest(self) -> int:
        """Tokens of the longest beginning that can be tested."""
        return min(self.length, self.width - SPARE)

    def directions(self, sentence: Numbers) -> Tensor:
        """In which something can have come back to the query of a beginning's last token, (groups, numbers, …)."""
        keys = self._keys_of(sentence)
        # What attention gives back adds up to zero, so that only differences of keys count.
        return _basis((keys[:-1] - keys[-1:]).permute(1, 2, 0))

    def left_over(self, sentence: Numbers) -> float:
        """What the tokens of a beginning leave over of the gradient at the last one's query, as a share of it."""
        basis = self.directions(sentence)
        back = self.turn(self.to_queries[sentence[-1]], len(sentence) - 1)
        return float((back - (back @ basis) @ basis.mT).norm() / self.sizes[sentence[-1]])

    def begins(self, sentence: Numbers) -> bool:
        """Whether these tokens are how a sentence of the batch begins, if the last occurs once.

        Tokens that no longer matter pass every test, so without the first the same must fail.
        """
        if not 1 < len(sentence) <= self.longest or not bool(self.clear[sentence[-1]]):
            return False
        allowed, left = float(self.allowed[sentence[-1]]), self.left_over(sentence)
        return left < allowed and (len(sentence) == 2 or self.left_over(sentence[1:]) >= max(allowed, CLEARLY * left))

    def firsts(self) -> Tensor:
        """What each token leaves over as the one before each other, at the start of a sentence, (first, second)."""
        before, own = (self.turn(self.keys, place) for place in (0, 1))
        back = self.turn(self.to_queries, 1)
        explained = torch.zeros(len(before), len(before), dtype=before.dtype, device=before.device)
        for group in range(self.groups):
            # Lengths of differences, and what comes back along them, without making all differences.
            one, two, mine = before[:, group], own[:, group], back[:, group]
            apart = one.square().sum(dim=1)[:, None] + two.square().sum(dim=1)[None] - 2 * one @ two.T
            for head in range(mine.shape[1]):
                along = one @ mine[:, head].T - (two * mine[:, head]).sum(dim=1)[None]
                explained += along.square() / apart.clamp_min(1e-20)
        left = self.sizes.square()[None] - explained
        return left.clamp_min(0).sqrt() / self.sizes

    def next_ones(self, sentence: Numbers, last: Sequence[int] | None = None) -> Tensor:
        """What a beginning leaves over at each token that may come next, or at some, (tokens,)."""
        place, outside = len(sentence), self._outside(sentence)
        some = torch.arange(len(self.tokens)) if last is None else torch.tensor(last, dtype=torch.long)
        own = torch.einsum("tgd,gde->tge", self._turned_keys(place)[some], outside)
        back = torch.einsum("tghd,gde->tghe", self._turned_backs(place)[some], outside)
        along = (back * own[:, :, None]).sum(dim=-1).square() / own.square().sum(dim=-1).clamp_min(1e-20)[..., None]
        left = back.square().sum(dim=(1, 2, 3)) - along.sum(dim=(1, 2))
        return left.clamp_min(0).sqrt() / self.sizes[some]

    def next_twos(self, sentence: Numbers, last: Sequence[int] | None = None) -> Tensor:
        """The same at each token, or at some, that may come after the next, for every inner one, (inner, last)."""
        place, outside = len(sentence), self._outside(sentence)
        some = torch.arange(len(self.tokens)) if last is None else torch.tensor(last, dtype=torch.long)
        one = torch.einsum("tgd,gde->gte", self._turned_keys(place)[self.inner], outside)
        two = torch.einsum("tgd,gde->gte", self._turned_keys(place + 1)[some], outside)
        back = torch.einsum("tghd,gde->ghte", self._turned_backs(place + 1)[some], outside)
        left = back.square().sum(dim=(0, 1, 3))[None].repeat(len(one[0]), 1)
        for group in range(self.groups):
            ones, twos = one[group].square().sum(dim=1)[:, None], two[group].square().sum(dim=1)[None]
            both = one[group] @ two[group].T
            size = (ones * twos - both.square()).clamp_min(1e-12)
            for mine in back[group]:
                with_one, with_two = one[group] @ mine.T, (mine * two[group]).sum(dim=1)[None]
                # Along the second first, then along what the first has beside it.
                beside = with_one - with_two * both / twos.clamp_min(1e-20)
                left -= with_two.square() / twos.clamp_min(1e-20) + beside.square() * twos / size
        return left.clamp_min(0).sqrt() / self.sizes[some]

    def one_more(self, sentence: tuple[int, ...]) -> list[tuple[int, ...]]:
        """A beginning with one more token, where that proves it."""
        if not 0 < len(sentence) < self.longest:
            return []
        clear = self.clear.nonzero()[:, 0]
        passed = clear[self.next_ones(sentence, clear.tolist()) < self.allowed[clear]].tolist()
        return [own for number in passed if self.begins(own := (*sentence, number))]

    def two_more(self, sentence: tuple[int, ...], pairs: Collection[tuple[int, ...]] = ()) -> list[tuple[int, ...]]:
        """The same with two more tokens; `pairs` are beginnings of two, which pass after anything."""
        if not 0 < len(sentence) < self.longest - 1:
            return []
        clear = self.clear.nonzero()[:, 0]
        passed = (self.next_twos(sentence, clear.tolist()) < self.allowed[clear]).nonzero().tolist()
        pairs_passed = [(int(self.inner[between]), int(clear[last])) for between, last in passed]
        return [own for pair in pairs_passed if pair not in pairs and self.begins(own := (*sentence, *pair))]

    @property
    def ends_show(self) -> bool:
        """Whether it is known what came back to keys, which tells ends."""
        return self.to_keys is not None

    def left_over_behind(self, sentence: Numbers, place: int) -> float:
        """What the tokens from a place on leave over of the gradient at the key of the token there."""
        assert self.to_keys is not None
        basis = self._basis_behind(sentence, place)
        back = self.turn(self.to_keys[sentence[place]], place)[:, None]
        size = float(self.to_keys[sentence[place]].norm())
        return float((back - (back @ basis) @ basis.mT).norm()) / max(size, 1e-300)

    def ends(self, sentence: Numbers, place: int) -> bool:
        """Whether no other token comes after these but one that is only predicted, by a token that occurs once."""
        assert self._allowed_key is not None
        if (len(sentence) - place) * self.queries.shape[2] > self.width - SPARE:
            return False
        return self.left_over_behind(sentence, place) < float(self._allowed_key[sentence[place]])

    def _basis_behind(self, sentence: Numbers, place: int) -> Tensor:
        queries = self.turn(self.queries[list(sentence[place:])], range(place, len(sentence)))
        return _basis(queries.permute(1, 3, 0, 2).flatten(2))

    def _keys_of(self, sentence: Numbers) -> Tensor:
        """The turned keys of a sentence, (tokens, groups, numbers)."""
        return self.turn(self.keys[list(sentence)], range(len(sentence)))

    def _outside(self, sentence: Numbers) -> Tensor:
        """Takes away what keys of a beginning explain, (groups, numbers, numbers)."""
        basis = _basis(self._keys_of(sentence).permute(1, 2, 0))
        return torch.eye(self.width, dtype=basis.dtype, device=basis.device) - basis @ basis.mT


class Turn:
    """Turns the numbers of heads, (…, numbers), as the model does: by a position, or each of several by its own."""

    def __init__(self, model: TextModel, length: int, width: int) -> None:
        base = model.module.base_model
        places = torch.arange(length, device=model.device)[None]
        angles = base.rotary_emb(torch.zeros(1, 1, width, device=model.device), places)
        self.cos, self.sin = (each[0].double() for each in angles)  # (positions, numbers that turn)

    def __call__(self, numbers: Tensor, place: int | range, back: bool = False) -> Tensor:
        size = self.cos.shape[-1]
        shape = (size,) if isinstance(place, int) else (len(place), *(1,) * (numbers.dim() - 2), size)
        at = place if isinstance(place, int) else slice(place.start, place.stop)
        cos, sin = self.cos[at].reshape(shape), self.sin[at].reshape(shape)
        turned, rest = numbers[..., :size], numbers[..., size:]
        one, other = turned.chunk(2, dim=-1)
        aside = torch.cat([-other, one], dim=-1) * sin
        turned = turned * cos + (-aside if back else aside)
        return torch.cat([turned, rest], dim=-1)


def _basis(columns: Tensor) -> Tensor:
    """An orthonormal basis of the columns of each of some matrices, (…, numbers, columns)."""
    return torch.linalg.qr(columns).Q


def attention_shows(model: TextModel, tensors: Mapping[str, Tensor], tokens: Sequence[int]) -> bool:
    """Whether single tokens can be tested: by what was sent, and as a made-up sentence shows."""
    parts = model.adapter.parts[0] if model.adapter.parts else {}
    if not solvable(model, tensors, tokens[:TRIED]) or not hasattr(model.module.base_model, "rotary_emb"):
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
