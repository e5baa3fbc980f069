"""Proof that a sentence was in the batch, from the update alone."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gradleak.attacks.parts.candidates import TOLERANCE
from gradleak.attacks.parts.probe import Probe
from gradleak.attacks.parts.spans import Span, span_of
from gradleak.models.adapter import Part
from gradleak.models.target import TargetModel
from gradleak.update import Update

# A threshold above this share of what a random state has proves nothing: too little of the space lies outside.
STRICT = 1e-3


@dataclass(frozen=True)
class Certificate:
    """A sentence's energy (mean squared distance of its states from the spans) and what noise allows."""

    energy: float
    threshold: float
    strict: bool

    @property
    def holds(self) -> bool:
        return self.strict and self.energy <= self.threshold


class Certifier:
    """Checks sentences against the untouched update, inside the first layer and at the entry of the second.

    The threshold is the energy that the update's own numerical noise would give the right sentence, times a margin.
    """

    def __init__(self, model: TargetModel, update: Update) -> None:
        layers = model.adapter.parts
        groups: list[list[Part]] = [[layers[0]["ffn_in"]]]
        if len(layers) > 1:
            groups.append([layers[1]["query"], layers[1]["value"]])
        self.model = model
        self.spans: list[tuple[Part, Span]] = []
        for parts in groups:
            matrices = [p.of(update.tensors[p.weight_name]) for p in parts if p.weight_name in update.tensors]
            span = span_of(matrices) if matrices else None
            if span is not None:
                self.spans.append((parts[0], span))

    def check(self, tokens: list[int]) -> Certificate:
        """The certificate of a sentence given with its special tokens."""
        batch = self.model.pad([tokens])
        with torch.no_grad():
            seen = Probe(self.model, [part for part, _ in self.spans])(input_ids=batch.ids, mask=batch.mask.long())
        energy = threshold = chance = 0.0
        for (_, span), states in zip(self.spans, seen, strict=True):
            energy += float(span.distances(states[0]).square().mean())
            threshold += float((TOLERANCE * span.floors(states[0])).square().mean())
            chance += len(span.complement) / span.width
        return Certificate(energy, threshold, 0 < threshold < STRICT * chance)
