"""Proof that a sentence was in the batch, from the update alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from gradleak.attacks.spans.probe import Probe
from gradleak.attacks.spans.spans import Span, least_outside, span_of
from gradleak.models.adapter import Carrier, Part
from gradleak.models.text import TextModel
from gradleak.updates.update import Update

# A threshold above this share of what a random state has proves nothing: too little of the space lies outside.
STRICT = 1e-3


class Place(NamedTuple):
    """A matrix, and the span of what it sees."""

    part: Part
    span: Span


class Rounding(NamedTuple):
    """The largest singular value that rounding gives a matrix at least, and how many times that at most."""

    edge: Callable[[Carrier], float]
    most: float


@dataclass(frozen=True)
class Certificate:
    """A sentence's energy (mean squared distance of its states from the spans) and what noise allows."""

    energy: float
    threshold: float
    strict: bool

    @property
    def holds(self) -> bool:
        return self.strict and self.energy <= self.threshold


def attention_parts(model: TextModel, layer: int) -> list[Part]:
    """The matrices that see a layer's input and whose gradients show all of it.

    An encoder's keys do not: softmax ignores what is common to all keys, so their gradient lacks a direction.
    A decoder's queries lack a sentence's first token, which has nothing to choose from; its keys and values do not.
    """
    family = model.adapter.family
    usual = ("query", "value") if family.kind == "encoder" else ("query", "key", "value")
    return [model.adapter.parts[layer][role] for role in family.inputs_seen_by or usual]


def mixing_parts(model: TextModel, layer: int) -> list[Part]:
    """The matrices that see a layer's states after its attention, and nothing of another text."""
    parts = model.adapter.parts[layer]
    roles = ("cross_query",) if "cross_query" in parts else ("ffn_in", "ffn_gate")
    return [parts[role] for role in roles if role in parts]


def carriers(tensors: Mapping[str, Tensor], parts: Sequence[Part]) -> list[Carrier]:
    """The tensors of an update that show what these parts of the same input see, all through the same map."""
    found = ((part, part.carrier(tensors)) for part in parts)
    # LoRA's factors of a fused matrix are those of all its parts, and twice the same would look like a lack of rank.
    unlike = {(c.name, part.block if c.name == part.weight_name else None): c for part, c in found if c is not None}
    plain = [carrier for carrier in unlike.values() if carrier.map is None]
    if plain or not unlike:
        return plain
    # Seen through different maps they cannot be joined: the widest shows most, and of equal widths the last, which
    # for attention is the value: it sees every token.
    return [max(reversed(unlike.values()), key=lambda carrier: carrier.matrix.shape[1])]


def carried(tensors: Mapping[str, Tensor], parts: Sequence[Part]) -> tuple[list[Tensor], Tensor | None]:
    """The gradients of these parts of the same input that an update holds, and the map they see it through."""
    found = carriers(tensors, parts)
    return [carrier.matrix for carrier in found], found[0].map if found else None


def joint_span(
    tensors: Mapping[str, Tensor],
    parts: Sequence[Part],
    before: Span | None = None,
    narrow: bool = False,
    outside: int | None = None,
    rounding: Rounding | None = None,
) -> Span | None:
    """The span of what these parts of the same input see, from those of them that an update holds.

    `rounding` is what local steps left, over which inputs drifted.
    """
    found = carriers(tensors, parts)
    if not found:
        return None
    edges, most = None, 1.0
    if rounding is not None:
        edges, most = [rounding.edge(carrier) for carrier in found], rounding.most
    span = span_of([carrier.matrix for carrier in found], before, narrow, outside, edges, most)
    return None if span is None else dataclasses.replace(span, map=found[0].map)


def input_span(
    model: TextModel, tensors: Mapping[str, Tensor], before: Span | None = None, narrow: bool = False
) -> Span | None:
    """The span of what the first layer sees; None too where it holds all that narrower embeddings can be made into.

    Where layers are shared, it holds what every run but the last sees of each token.
    """
    span = joint_span(tensors, attention_parts(model, 0), before, narrow)
    adapter, width = model.adapter, model.width
    if span is None or adapter.embedding_projection is None:
        return span
    tokens = span.rank / (adapter.depth - 1 if adapter.shared else 1)
    return span if tokens <= width - least_outside(width) else None


def mixed_layer(model: TextModel, tensors: Mapping[str, Tensor]) -> tuple[int, list[Part]]:
    """The first matrices of an update that see tokens mixed with their neighbours, and the layer they are in.

    Those that the update holds come first. If it holds none at all, they are those that it would take.
    """
    places = mixed_places(model, range(len(model.adapter.parts)))
    for layer, parts in places:
        held = [part for part in parts if part.carrier(tensors) is not None]
        if held and shows_every_token(model, layer):
            return layer, [*held, *(part for part in parts if part not in held)]
    return places[0] if places else (0, mixing_parts(model, 0))


def mixed_places(model: TextModel, layers: Iterable[int]) -> list[tuple[int, list[Part]]]:
    """The matrices of these layers that see tokens mixed with their neighbours, by input, in the order they run.

    The first layer's attention mixes them, so it does not see them mixed itself; nor does a feed-forward block that
    runs beside it.
    """
    places = [(layer, kind) for layer in layers for kind in (attention_parts, mixing_parts)]
    unmixed = (attention_parts, mixing_parts) if model.adapter.parallel else (attention_parts,)
    return [(layer, kind(model, layer)) for layer, kind in places if layer or kind not in unmixed]


def shows_every_token(model: TextModel, layer: int) -> bool:
    """Whether a layer's gradients have a direction of their own for every token.

    A classifier's last layer is read at a single token: its queries and what follows have a direction per sentence,
    its keys and values a direction per head.
    """
    last = layer == len(model.adapter.parts) - 1 and not model.adapter.shared  # a shared layer runs before that too
    return model.goal.autoregressive or model.goal.paired or not last


def next_span(model: TextModel, tensors: Mapping[str, Tensor], layer: int, mixed: Span) -> Span | None:
    """The span of what the next layer sees, if it is whole: a classifier's last layer is read at a single token."""
    if layer + 1 >= len(model.adapter.parts):
        return None
    span = joint_span(tensors, attention_parts(model, layer + 1))
    return span if span is not None and span.rank >= mixed.rank else None


def mixed_spans(model: TextModel, tensors: Mapping[str, Tensor]) -> list[Place]:
    """What is mixed first, and what the next layer sees, as far as they show; nothing if the first does not."""
    layer, parts = mixed_layer(model, tensors)
    mixed = joint_span(tensors, parts)
    if mixed is None:
        return []
    following = next_span(model, tensors, layer, mixed)
    after = [] if following is None else [Place(attention_parts(model, layer + 1)[0], following)]
    return [Place(parts[0], mixed), *after]


class Certifier:
    """Checks sentences against the untouched update, where tokens are mixed first and at the entry of the next layer.

    The threshold is the energy that the update's own numerical noise would give the right sentence, times a margin.
    """

    def __init__(self, model: TextModel, update: Update, spans: Sequence[Place] | None = None) -> None:
        """`spans` are those that sentences are checked against, with a matrix of each, in the order they run."""
        self.model = model
        self.spans = mixed_spans(model, update.tensors) if spans is None else spans

    def states(self, tokens: Sequence[int], start: int = 0) -> list[Tensor]:
        """What the places see of a sentence, (tokens, width) each; `start` is the position of the first token."""
        ids = torch.tensor([list(tokens)], device=self.model.device)
        where = {"position_ids": torch.arange(start, start + len(tokens), device=ids.device)[None]} if start else {}
        with torch.no_grad():
            probe = Probe(self.model, [part for part, _ in self.spans])
            seen = probe(input_ids=ids, mask=torch.ones_like(ids), **where) if self.spans else []
        return [states[0] for states in seen]

    def check(self, tokens: Sequence[int], start: int = 0, seen: Sequence[Tensor] | None = None) -> Certificate:
        """The certificate of a sentence given with its special tokens; `seen` are its states, if they are known."""
        energy = threshold = chance = 0.0
        for (_, span), states in zip(self.spans, self.states(tokens, start) if seen is None else seen, strict=True):
            energy += float(span.distances(states).square().mean())
            threshold += float(span.limits(states).square().mean())
            chance += len(span.complement) / span.width
        return Certificate(energy, threshold, 0 < threshold < STRICT * chance)
