"""What an inverter looks at: an update's tensors made into a vector, or into a row for every position."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from gradleak.attacks.inversion.hashing import Hashing
from gradleak.core.errors import GradleakError
from gradleak.models.hooks import of_this_thread
from gradleak.models.text import TextModel

FeatureName = Literal["structured", "hashed"]
# How much of the keys' mean square is added before they are unmixed. Output gradients point all ways; inputs at two
# positions are much the same, and only the small difference tells them apart.
OUTPUT_RIDGE, INPUT_RIDGE = 0.05, 0.03
# Random sequences over which a position's mean inputs are taken.
SEQUENCES = 512


@dataclass(frozen=True)
class Guess:
    """Token sequences that updates may be of, (rows, positions), and at which positions they are taken as known."""

    tokens: Tensor
    known: Tensor


class Features(Protocol):
    """Reads many updates at once; every tensor is (rows, *shape). A guess helps those that can use it."""

    names: list[str]
    """The tensors that are read."""
    size: int

    def of(self, tensors: Mapping[str, Tensor], guess: Guess | None = None) -> Tensor: ...


class Hashed:
    """All coordinates hashed into a tenth as many bins, as published."""

    def __init__(self, shapes: Mapping[str, Sequence[int]], share: float = 0.1, seed: int = 0) -> None:
        self.names = list(shapes)
        total = sum(torch.Size(shape).numel() for shape in shapes.values())
        self.size = max(1, round(share * total))
        self.hashing = Hashing(shapes, self.size, seed)

    def of(self, tensors: Mapping[str, Tensor], guess: Guess | None = None) -> Tensor:
        """(rows, bins)."""
        return self.hashing.of({name: tensors[name] for name in self.names if name in tensors})


class Structured:
    """What belongs to a position, together: its row of the position embedding, and the layers' inputs and gradients.

    Row p of the position embedding's gradient is the loss's derivative by the input at position p, and so about that
    by every layer's output there, for each layer adds to its input. The last matrix of a feed-forward block has the
    gradient Σ_p (its input at p) (derivative at p)ᵀ, a sum over positions that keys take apart again: `unmixing`. The
    rows are keys to the inputs. And what a position's inputs are on average over tokens differs between positions, so
    that is a key to the derivatives, and these in turn to the inputs; neither needs a row, which counts where pruning
    has left none. Inputs are seen through the block's first matrix, back at the width of the embedding.

    Where a position's token is known, its inputs are not only known on average: running the model on the guess shows
    them. So an update can be read again with what was read at first.
    """

    def __init__(self, model: TextModel, length: int) -> None:
        table = model.adapter.positions
        if table is None:
            raise GradleakError(f"{model.name} has no position embedding; use features=hashed")
        if model.adapter.embedding_projection is not None or model.adapter.shared:
            raise GradleakError(
                f"{model.name} has embeddings of another width than its layers, or shares layers; use features=hashed"
            )
        first = model.adapter.family.first_position
        self._rows = slice(first, first + length)
        self._table = model.adapter.parameter_of(table)
        self._parts = [parts["ffn_out"] for parts in model.adapter.parts]
        weights = dict(model.module.named_parameters())
        self._into = [p["ffn_in"].of(weights[p["ffn_in"].weight_name].detach()) for p in model.adapter.parts]
        self._model = model
        self._usual = [inputs.mean(dim=0) for inputs in self._inputs(_random_sequences(model, length))]
        self.names = [self._table, *(part.weight_name for part in self._parts)]
        self.size = model.width * (1 + 3 * len(self._parts)) + 1

    def of(self, tensors: Mapping[str, Tensor], guess: Guess | None = None) -> Tensor:
        """(rows, positions, features)."""
        keys, known = self._keys(guess)
        rows = tensors[self._table][:, self._rows]
        views = [rows, known.expand(len(rows), -1)[..., None].to(rows.dtype)]
        by_rows = unmixing(rows, OUTPUT_RIDGE)
        for number, part in enumerate(self._parts):
            states = _matrix(tensors[part.weight_name], part.transposed)  # (rows, width, wide)
            outputs = unmixing(keys[number], INPUT_RIDGE) @ states.transpose(1, 2)  # (rows, positions, width)
            inputs = torch.cat([by_rows, unmixing(outputs, OUTPUT_RIDGE)], dim=1) @ states @ self._into[number]
            views += [outputs, *inputs.chunk(2, dim=1)]
        return torch.cat(views, dim=-1)

    def _keys(self, guess: Guess | None) -> tuple[list[Tensor], Tensor]:
        """Every layer's inputs as far as they are known, (rows, positions, wide), and at which positions they are."""
        if guess is None:
            return [usual[None] for usual in self._usual], torch.zeros(1, len(self._usual[0]))
        seen = self._inputs(guess.tokens)
        where = guess.known[..., None]
        return [torch.where(where, own, usual) for own, usual in zip(seen, self._usual, strict=True)], guess.known

    def _inputs(self, tokens: Tensor) -> list[Tensor]:
        """What the last matrices of the feed-forward blocks see, (sequences, positions, wide) each."""
        inputs: dict[nn.Module, Tensor] = {}

        def watch(module: nn.Module, args: tuple[Tensor, ...]) -> None:
            inputs[module] = args[0]

        hooks = [part.module.register_forward_pre_hook(of_this_thread(watch)) for part in self._parts]
        try:
            with torch.no_grad():
                self._model.module.base_model(input_ids=tokens, attention_mask=torch.ones_like(tokens))
        finally:
            for hook in hooks:
                hook.remove()
        return [inputs[part.module] for part in self._parts]


def _random_sequences(model: TextModel, length: int) -> Tensor:
    usual = model.text_tokens.nonzero()[:, 0]
    generator = torch.Generator().manual_seed(0)
    return usual[torch.randint(len(usual), (SEQUENCES, length), generator=generator)]


def unmixing(keys: Tensor, ridge: float) -> Tensor:
    """For keys K, (rows, positions, n), the matrix (K Kᵀ + λ)⁻¹ K that finds the share of each key in a mixture.

    λ is a share of the keys' mean square: they are known only roughly.

    >>> keys = torch.eye(3)[None, :2]
    >>> mixture = 1.25 * (2 * keys[0, 0] + 5 * keys[0, 1])
    >>> (unmixing(keys, 0.25) @ mixture).tolist()
    [[2.0, 5.0]]
    """
    products = keys @ keys.transpose(1, 2)
    typical = products.diagonal(dim1=1, dim2=2).mean(dim=1).clamp_min(1e-30)
    damping = torch.diag_embed((ridge * typical)[:, None].expand(-1, keys.shape[1]))
    return torch.linalg.solve(products + damping, keys)


def _matrix(tensor: Tensor, transposed: bool) -> Tensor:
    """(rows, outputs, inputs) of a weight stored either way."""
    return tensor.transpose(1, 2) if transposed else tensor
