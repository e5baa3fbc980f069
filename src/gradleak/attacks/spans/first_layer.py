"""What the first layer of an encoder gave back at single tokens, however many the batch has.

The layer sees the sum of a token's and a position's embedding through a norm. So all its inputs are combinations of
one known vector for each different token, one for each position and one that is common to all. As long as these are
independent, the gradients of its matrices give the summed output gradients of each token and of each position, even
where the batch has far more tokens than the layer has dimensions. A token that occurs once thereby shows its own.

For such a token the layer's backward pass can be written down. The row of the token embedding gives, through the
norm, what came back to the token by all ways; without what came by query, key and value, what is left came past the
attention, and that is also what came back into it. From it the gradient at the token's query follows, if one knows
what the token saw: the keys and values of its own sentence and nothing else. So a guess at the sentence can be tested
at a single token.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from gradleak.attacks.spans.unmix import unmix
from gradleak.models.adapter import Part
from gradleak.models.text import TextModel

ROLES = ("query", "key", "value")
# Directions of each head's keys by which guesses are compared.
DIRECTIONS = 16
# Vectors that are less independent than this cannot be told apart in fp32.
LEAST_INDEPENDENT = 1e-6
# The share of the gradients that no combination explains: rounding leaves 1e-7, noise and local steps far more.
MOST_LEFT = 1e-4


class Anchor(NamedTuple):
    """A token that occurs once, and at which a sentence can be tested.

    `wanted` is the gradient at its query, (heads, directions). The others are for every token at every position:
    how much the anchor would attend to it, (positions, tokens, heads), the same times its key, and what its value
    adds along what came back into the attention, which is known but for a multiple of a known direction.
    """

    token: int
    position: int
    wanted: Tensor
    weights: Tensor
    keys: Tensor
    along: Tensor
    unknown: Tensor


class FirstLayer:
    """The sums of output gradients by token and by position, and keys and values of all tokens everywhere."""

    def __init__(
        self, model: TextModel, tensors: Mapping[str, Tensor], tokens: Tensor, rows: Tensor, length: int
    ) -> None:
        """`tokens` are all that the batch has, `rows` their embeddings' gradients, `length` the positions it uses."""
        adapter = model.adapter
        norm = adapter.embedding_norm
        assert adapter.positions is not None
        assert isinstance(norm, nn.LayerNorm)
        self.tokens, self.length = tokens, length
        self.heads = int(model.module.config.num_attention_heads)
        first = adapter.family.first_position
        own = model.embed(tokens).double()
        places = adapter.positions.weight.detach()[first : first + length].double()
        if adapter.token_types is not None:
            places = places + adapter.token_types.weight.detach()[0].double()
        scale, shift = norm.weight.detach().double(), norm.bias.detach().double()
        sums = places[:, None] + own
        self.spread = (sums.var(dim=-1, unbiased=False) + norm.eps).sqrt()  # (positions, tokens)
        self.normal = (sums - sums.mean(dim=-1, keepdim=True)) / self.spread[..., None]
        inputs = scale * self.normal + shift
        vectors = [scale * (each - each.mean(dim=1, keepdim=True)) for each in (own, places)]
        known = torch.cat([*vectors, shift[None]] if bool(shift.any()) else vectors)
        sizes = torch.linalg.svdvals(known)
        independent = len(known) <= known.shape[1] and bool(sizes[-1] > LEAST_INDEPENDENT * sizes[0])
        inverse = torch.linalg.pinv(known)
        parts = [adapter.parts[0][role] for role in ROLES]
        gradients = [part.of(tensors[part.weight_name]).double() for part in parts]
        solved = [(gradient @ inverse).T for gradient in gradients]
        left = max(float((g - s.T @ known).norm() / g.norm()) for g, s in zip(gradients, solved, strict=True))
        self.solved = independent and left < MOST_LEFT
        self.by_token = [each[: len(tokens)] for each in solved]
        self.by_position = [each[len(tokens) : len(tokens) + length] for each in solved]
        self.rows = rows.double()
        self.position_rows = tensors[adapter.parameter_of(adapter.positions)][first : first + length].double()
        self.matrices = [weight_of(part) for part in parts]
        self.queries, self.keys, self.values = (
            self._split(inputs @ matrix.T + bias_of(part)) for part, matrix in zip(parts, self.matrices, strict=True)
        )
        self.output = weight_of(adapter.parts[0]["attention_out"])
        self.scale = scale
        generator = torch.Generator().manual_seed(0)
        width = self.keys.shape[-1]
        turned = torch.linalg.qr(torch.randn(width, width, generator=generator, dtype=torch.float64)).Q
        self.turn = turned[:, : min(DIRECTIONS, width)].to(self.keys)
        self.turned_keys = self.keys @ self.turn

    def _split(self, outputs: Tensor) -> Tensor:
        return outputs.unflatten(-1, (self.heads, -1))

    def shares(self) -> Tensor:
        """How much of each token lies at each position, (tokens, positions), by all gradients together."""
        pairs = [(self.rows, self.position_rows), *zip(self.by_token, self.by_position, strict=True)]
        tokens, places = zip(*[(own / at.norm(), at / at.norm()) for own, at in pairs], strict=True)
        allowed = torch.ones(len(self.tokens), self.length, dtype=torch.bool, device=self.rows.device)
        return unmix(torch.cat(tokens, dim=1), torch.cat(places, dim=1), allowed)

    def anchor(self, token: int, position: int) -> Anchor:
        """What a token, by its number among the tokens, shows if it occurs once, and there."""
        spread = self.spread[position, token]
        slopes = [each[token] * spread for each in self.by_token]
        by_matrices = sum(slope @ matrix for slope, matrix in zip(slopes, self.matrices, strict=True))
        # The norm hides two directions: the mean and its own output. What comes out of the norm after the attention
        # has no mean, which fixes one of them.
        past = self.rows[token] * spread / self.scale - by_matrices
        hidden, mean = self.normal[position, token] / self.scale, 1 / self.scale
        past, hidden = (each - mean * (each.sum() / mean.sum()) for each in (past, hidden))
        into, unknown = (self._split(each @ self.output) for each in (past, hidden))
        query, width = self.queries[position, token], self.keys.shape[-1]
        wanted = self._split(slopes[0]) * width**0.5
        size = wanted.norm().clamp_min(1e-300)
        scores = torch.einsum("pthd,hd->pth", self.keys, query) / width**0.5
        weights = (scores - scores.amax(dim=(0, 1))).exp()
        along = torch.einsum("pthd,hd->pth", self.values, into / size)
        other = torch.einsum("pthd,hd->pth", self.values, unknown)
        return Anchor(
            token,
            position,
            (wanted / size @ self.turn).float(),
            weights.float(),
            (weights[..., None] * self.turned_keys).float(),
            along.float(),
            (other / other.std().clamp_min(1e-300)).float(),
        )


def layer_is_plain(model: TextModel) -> bool:
    """Whether the model has all that is assumed here, by its parts; whether it computes so is another question."""
    adapter = model.adapter
    linear = [adapter.parts[0][role].module for role in (*ROLES, "attention_out") if role in adapter.parts[0]]
    return (
        adapter.family.kind == "encoder"
        and isinstance(adapter.positions, nn.Embedding)
        and isinstance(adapter.embedding_norm, nn.LayerNorm)
        and adapter.embedding_projection is None
        and not adapter.shared
        and not adapter.parallel
        and len(linear) == len(ROLES) + 1
        and all(isinstance(module, nn.Linear) for module in linear)
    )


def names_needed(model: TextModel) -> list[str]:
    """The tensors without which a first layer cannot be solved."""
    adapter = model.adapter
    assert adapter.positions is not None
    tables = [adapter.parameter_of(table) for table in (adapter.token_embedding, adapter.positions)]
    return [*tables, *(adapter.parts[0][role].weight_name for role in ROLES)]


def energies(anchor: Anchor, positions: Tensor, tokens: Tensor, live: Tensor) -> tuple[Tensor, Tensor]:
    """How far the anchor's query is from what sentences explain, squared, and the multiples that fit best.

    Sentences are (sentences, positions) numbers of tokens, `live` says which positions they have.
    """
    parts = _Sums(anchor, positions, tokens, live)
    unexplained, other = anchor.wanted - parts.explained(anchor.along), parts.explained(anchor.unknown)
    multiple = (unexplained * other).sum(dim=(1, 2)) / other.square().sum(dim=(1, 2)).clamp_min(1e-30)
    left = unexplained - multiple[:, None, None] * other
    return left.square().sum(dim=(1, 2)) / anchor.wanted.square().sum(), multiple


def flipped_energies(anchor: Anchor, tokens: Tensor, live: Tensor, multiple: Tensor, choices: Tensor) -> Tensor:
    """The energies of all sentences with one token exchanged: (sentences, positions, choices).

    `choices` are (positions, choices) numbers of tokens; the multiples stay as they are. Squares are made of products
    of what the others add up to with each choice, which is much less work and loses what is below 1e-6.
    """
    places = torch.arange(tokens.shape[1], device=tokens.device)
    now, at = _Sums(anchor, places, tokens, live), places[:, None]
    here = now.at(anchor.along) + multiple[:, None, None] * now.at(anchor.unknown)
    sums, products = now.weights * here, now.keys * here[..., None]
    # What the other tokens add up to, (sentences, positions, heads), and the choices, (positions, choices, heads).
    others = [each.sum(dim=1, keepdim=True) - each for each in (now.weights, sums, now.keys, products)]
    weight, value, seen, both = others
    weights, keys = anchor.weights[at, choices], anchor.keys[at, choices]
    values = anchor.along[at, choices] + multiple[:, None, None, None] * anchor.unknown[at, choices]
    shrink = 1 / (weight[:, :, None] + weights)
    mean = (value[:, :, None] + weights * values) * shrink
    # With the choice's key k the difference from what is wanted is a + c k.
    squares = _product(both, both) - mean * (2 * _product(both, seen) - mean * _product(seen, seen))
    with_wanted = _product(both, anchor.wanted) - mean * _product(seen, anchor.wanted)
    apart = shrink * (shrink * squares - 2 * with_wanted) + anchor.wanted.square().sum(dim=-1)
    along = shrink * (_with_choices(both, keys) - mean * _with_choices(seen, keys)) - (keys * anchor.wanted).sum(
        dim=-1
    )
    share = (values - mean) * shrink
    left = apart + share * (2 * along + share * keys.square().sum(dim=-1))
    return left.sum(dim=-1) / anchor.wanted.square().sum()


def _product(one: Tensor, other: Tensor) -> Tensor:
    """Of (sentences, positions, heads, directions), for every choice."""
    return (one * other).sum(dim=-1)[:, :, None]


def _with_choices(one: Tensor, keys: Tensor) -> Tensor:
    """Products with the keys of choices: (sentences, positions, choices, heads)."""
    return torch.einsum("sphd,pchd->spch", one, keys)


class _Sums:
    """What an anchor's attention adds up over the tokens of sentences."""

    def __init__(self, anchor: Anchor, positions: Tensor, tokens: Tensor, live: Tensor) -> None:
        self._where, self._live = (positions, tokens), live[..., None].float()
        self.weights = self.at(anchor.weights)
        self.keys = anchor.keys[self._where] * self._live[..., None]
        self.total = self.weights.sum(dim=1)

    def at(self, table: Tensor) -> Tensor:
        """A table's numbers for the tokens of the sentences, none where a sentence has ended."""
        return table[self._where] * self._live

    def explained(self, values: Tensor) -> Tensor:
        """The gradient at the query for what values add along what came back: a covariance of keys with that."""
        own = self.at(values)
        mean = (self.weights * own).sum(dim=1) / self.total
        return ((self.keys * (own - mean[:, None])[..., None]).sum(dim=1)) / self.total[..., None]


def weight_of(part: Part) -> Tensor:
    """A part's matrix, (outputs, inputs), in float64."""
    return part.of(part.module.get_parameter("weight").detach()).double()


def bias_of(part: Part) -> Tensor | float:
    """What a part adds, zero where it adds nothing."""
    bias = part.module.bias
    return 0.0 if not isinstance(bias, Tensor) else part.block.of(bias.detach()).double()
