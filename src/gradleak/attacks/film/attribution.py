"""How much of an update each token of a guess explains, in two forward passes and no backward pass.

An update is the mean of a gradient for every token that was predicted. Let D be a matrix G of it with its singular
values turned upside down: then ⟨G, D⟩ is the rank of G, so the tokens of the batch score the rank on average, each
about as much as the others, while the gradient of a token that was not there points anywhere else and scores
about 0. And ⟨gradient, D⟩ need not be computed from a gradient: it is how fast the token's log-probability rises when
the weights take a step along -D. Unlike the test whether a state lies in a span, this still tells tokens apart
when the batch has more tokens than the matrix has dimensions.
"""

from __future__ import annotations

import copy
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gradleak.attacks.evidence.noise import added_noise
from gradleak.attacks.spans.certify import attention_parts, joint_span
from gradleak.models.hooks import of_this_thread
from gradleak.models.text import TextModel
from gradleak.updates.update import Update

# Singular values so far below the largest are rounding.
ROUNDING = 1e-4
# Noise alone has singular values up to its edge; those kept are so many times above.
ABOVE_NOISE = 1.1
# How far the weights step, relative to their size: far enough to stand above rounding, near enough to be linear.
STEP = 1e-3
# The layers that move, counted from the head: a sixth of all, and two at least. Lower layers show less.
SHARE_OF_LAYERS, LEAST_LAYERS = 6, 2
# A state is in a span up to this distance: rounding through all lower layers leaves far less. Other states are
# further off: by 0.14 and more on smollm2, by 0.004 at the first position, which looks nearly the same for any token.
OUTSIDE = 1e-3


@dataclass(frozen=True)
class Inverted:
    """A matrix with its singular values turned upside down, and their number."""

    direction: Tensor
    rank: int


def inverted(matrix: Tensor, noise: float = 0.0, least: float = ROUNDING) -> Inverted:
    """U S⁻¹ Vᵀ of U S Vᵀ, without singular values that noise on every entry makes, or below a share of the largest.

    >>> inverse = inverted(torch.diag(torch.tensor([4.0, 0.5, 0.0])))
    >>> inverse.direction.diagonal().tolist(), inverse.rank
    ([0.25, 2.0, 0.0], 2)
    """
    wide = matrix.shape[0] < matrix.shape[1]
    tall = (matrix.T if wide else matrix).double()
    squares, vectors = torch.linalg.eigh(tall.T @ tall)
    edge = noise * (tall.shape[0] ** 0.5 + tall.shape[1] ** 0.5)
    sizes = squares.clamp_min(0).sqrt()
    kept = sizes > max(least * float(sizes[-1]), ABOVE_NOISE * edge, 1e-150)
    vectors, squares = vectors[:, kept], squares[kept]
    direction = tall @ (vectors / squares) @ vectors.T
    return Inverted((direction.T if wide else direction).to(matrix.dtype), int(kept.sum()))


class Attribution:
    """How much of an update tokens explain, by a copy of the upper layers that took a step along its inverse."""

    def __init__(
        self,
        model: TextModel,
        update: Update,
        noise: float | None = None,
        layers: int | None = None,
        least: float = ROUNDING,
    ) -> None:
        """`noise` is what was added to every entry; by default as far as the update shows it.

        `layers` are those that move, counted from the head. Singular values below a share, `least`, of their
        matrix's largest are left out.
        """
        count = len(model.adapter.layers)
        self.model, self._least = model, least
        self.first = count - min(count, layers or max(LEAST_LAYERS, count // SHARE_OF_LAYERS))
        self.moved = upper_layers(model, self.first, update.tensors)
        self.noise = added_noise(update, model) if noise is None else noise
        # While the batch has fewer tokens than the layer has dimensions, its states lie in a span, and others do not.
        # Noise turns a span, by how much is not known.
        self.span = None if self.noise else joint_span(update.tensors, attention_parts(model, self.first))
        # What the batch's own tokens score on average; 0 if the update holds nothing of these layers.
        self.unit = self._step(update)

    @property
    def entrance(self) -> nn.Module:
        """The query matrix of the first of the upper layers: it sees what the span is of."""
        family = self.model.adapter.family
        where = family.roles["query"]
        first = next(self.moved.get_submodule(family.layers).children())
        return first.get_submodule(where if isinstance(where, str) else where.path)

    def _step(self, update: Update) -> float:
        unit = 0.0
        layers = self.moved.get_submodule(self.model.adapter.family.layers)
        for index, layer in enumerate(layers.children()):
            above = self.model.adapter.name_of(self.model.adapter.layers[self.first + index])
            for name, weight in layer.named_parameters():
                gradient = update.tensors.get(f"{above}.{name}")
                if gradient is None or gradient.dim() != 2 or not bool(gradient.any()):
                    continue
                inverse = inverted(gradient.to(weight), self.noise, self._least)
                size = float(inverse.direction.norm())
                if not size:  # an update so large that its inverse vanishes
                    continue
                reach = STEP * float(weight.detach().norm() or 1.0) / size
                with torch.no_grad():
                    weight -= reach * inverse.direction
                unit += reach * inverse.rank
        return unit

    def shares(self, sentences: Sequence[Sequence[int]]) -> list[Tensor]:
        """For every sentence the share of each token but the first: about 1 in the batch, about 0 elsewhere."""
        return [shares for _, shares in self.judge(sentences)]

    @torch.no_grad()
    def judge(self, sentences: Sequence[Sequence[int]]) -> list[tuple[Tensor, Tensor]]:
        """For every sentence the log-probability and the share of each token but the first."""
        batch = self.model.pad(sentences)
        plain, moved = (_log_probs(self.model, state, batch.ids) for state in self.reading().states(batch.ids))
        shares = (moved - plain) / self.unit
        ends = [len(sentence) - 1 for sentence in sentences]
        return [(plain[row, :end], shares[row, :end]) for row, end in enumerate(ends)]

    @torch.no_grad()
    def following(self, sentence: Sequence[int], bag: Tensor) -> Tensor:
        """The shares of all tokens of a bag as the next after each token of a sentence, (sentence, bag)."""
        ids = torch.tensor([list(sentence)], device=self.model.device)
        states = self.reading().states(ids)
        plain, moved = (self.model.output_logits(state[0], bag).log_softmax(dim=1) for state in states)
        return (moved - plain) / self.unit

    def reading(self) -> CachedReading:
        """A reading that begins with empty caches."""
        return CachedReading(self)


class CachedReading:
    """Sentences read token by token by the model and by its moved copy, both with a cache."""

    def __init__(self, attribution: Attribution) -> None:
        from transformers import DynamicCache

        self._attribution = attribution
        self._caches = (DynamicCache(), DynamicCache())
        # Whether the last token read may have been read in the batch, as far as a span shows.
        self.fits: Tensor | None = None

    @torch.no_grad()
    def states(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """The last hidden states after further tokens, (rows, tokens, width), plain and moved."""
        lower, upper = self._caches
        attribution = self._attribution
        plain = attribution.model.module.base_model(
            input_ids=ids, past_key_values=lower, use_cache=True, output_hidden_states=True
        )
        between = plain.hidden_states[attribution.first]
        seen: list[Tensor] = []
        hook = attribution.entrance.register_forward_pre_hook(
            of_this_thread(lambda _, inputs: seen.append(inputs[0]))
        )
        try:
            moved = attribution.moved(inputs_embeds=between, past_key_values=upper, use_cache=True)
        finally:
            hook.remove()
        if attribution.span is not None:
            self.fits = attribution.span.distances(seen[0][:, -1]) < OUTSIDE
        return plain.last_hidden_state, moved.last_hidden_state

    @property
    def cache(self) -> Any:
        """Keys and values of the plain model, a row per sentence."""
        return self._caches[0]

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows only, in this order; a row may come twice."""
        for cache in self._caches:
            cache.batch_select_indices(rows)


def _log_probs(model: TextModel, states: Tensor, ids: Tensor) -> Tensor:
    """The log-probability of every token but the first."""
    logits = model.output_logits(states[:, :-1])
    return logits.gather(2, ids[:, 1:, None])[..., 0] - logits.logsumexp(dim=2)


def upper_layers(model: TextModel, first: int, moved: Container[str]) -> Any:
    """A copy of the base model that begins at a layer and takes that layer's input in place of embeddings.

    Of its weights those of these names are its own; the others are the model's.
    """
    base, family = model.module.base_model, model.adapter.family
    shared = {id(parameter): parameter for parameter in base.parameters()}
    for layer in model.adapter.layers[first:]:
        above = model.adapter.name_of(layer)
        for name, parameter in layer.named_parameters():
            if f"{above}.{name}" in moved:
                shared.pop(id(parameter))
    upper = copy.deepcopy(base, shared)
    layers = nn.ModuleList(list(upper.get_submodule(family.layers))[first:])
    upper.set_submodule(family.layers, layers)
    upper.config.num_hidden_layers = len(layers)
    if kinds := getattr(upper.config, family.layer_kinds, None):
        setattr(upper.config, family.layer_kinds, list(kinds)[first:])
    for index, layer in enumerate(layers):
        for module in layer.modules():
            for place in ("layer_idx", "layer_id"):  # which place of the cache it uses
                if hasattr(module, place):
                    setattr(module, place, index)
    _begin_at(upper, layers[0])
    return upper


def _begin_at(upper: Any, first: nn.Module) -> None:
    """Let a layer see what the model is given in place of embeddings.

    Whatever a model does to embeddings before its first layer was done to such states below: positions were added,
    numbers normalised or multiplied.
    """
    given: list[Tensor] = []

    def remember(module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        given[:] = [named["inputs_embeds"]]

    def begin(module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, Any]:
        if arguments:
            return (given[0], *arguments[1:]), named
        return arguments, {**named, "hidden_states": given[0]}

    upper.register_forward_pre_hook(remember, with_kwargs=True)
    first.register_forward_pre_hook(begin, with_kwargs=True)
