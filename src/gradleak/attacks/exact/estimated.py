"""Exact recovery's search on a gradient that is an estimate with known errors: after a first step of AdamW, or after
one step of SGD that is sent as rounded weights.

The rounds are those of encoders: unmix, search, accept, remove. Spans come from weighted fits and say how far off
noise puts a true state. A sentence is accepted if its states in several layers are no farther away than that. That
alone proves nothing. Once there are as many sentences as the batch has, their gradient is computed and compared with
the estimate entry by entry: if it explains every entry to within its error, they are the batch.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from contextlib import suppress

import torch
from torch import Tensor

from gradleak.attacks.evidence.departures import hiding_defenses
from gradleak.attacks.exact.contribution import SentenceGradients, find_contribution, sentence_gradient
from gradleak.attacks.exact.encoders import EncoderRecovery
from gradleak.attacks.exact.limits import rank_hidden
from gradleak.attacks.exact.recovery import Outcome, Recovered
from gradleak.attacks.spans.certify import Certificate, attention_parts, mixing_parts, shows_every_token
from gradleak.attacks.spans.denoise import Fit, denoised
from gradleak.attacks.spans.probe import Probe
from gradleak.attacks.spans.spans import Span
from gradleak.core.budget import Budget, Stopped
from gradleak.models.adapter import Part
from gradleak.models.text import TextModel
from gradleak.updates.gradient import Undone

# Squared distances of a sentence's states, against what noise makes of them, up to which it is accepted: in the mean
# over all layers looked at, and in each of them.
ACCEPTED, ACCEPTED_EACH = 3.0, 8.0
# Far below what a wrong token makes (`WORTH_JUDGING`), so that errors need not be known any better.
CLOSE = 3e-5
# Groups of matrices by which sentences are judged: after the first attention, then around the next layers'.
GROUPS = 3
# An energy up to which a sentence is judged at all: far above noise, far below a random sentence.
WORTH_JUDGING = 0.02
# How far from the identity the test of a label may be on an estimate, and what counts as noise in it.
MISFIT, NOISE_SHARE = 0.7, 3e-3
# Entries whose error is larger than so much of their size show a sign and a lower bound only.
SATURATED = 1.5
# A row is gone once what is left of it is so many times its error, squared, in the mean.
GONE = 4.0
# The batch's own gradient misses the estimate by 1 in the mean, in units of errors, squared. Wrong sentences miss by
# hundreds.
REPLAYED = 1.5
# Labels that did not show are tried together, so many combinations at most.
MOST_LABELLINGS = 64
# How sure a sentence is whose states are all within noise of the spans, but which is not proved.
CONFIDENCE = 0.9
# What the client's own arithmetic in fp32 leaves of an entry, against what is usual in its row and column.
ARITHMETIC = 1e-5


def can_estimate(model: TextModel, undone: Undone) -> bool:
    """Whether an update shows what this search needs: errors, both embeddings, and matrices that see mixed states."""
    adapter, tensors = model.adapter, undone.gradient.tensors
    manifest = undone.gradient.manifest
    hidden = hiding_defenses(manifest.defenses) or manifest.client.mode == "train"
    if undone.errors is None or adapter.positions is None or hidden or not _labels_can_be_tried(model):
        return False
    tables = [adapter.parameter_of(adapter.token_embedding), adapter.parameter_of(adapter.positions)]
    return all(name in tensors for name in tables) and bool(_groups(model, undone))


def _labels_can_be_tried(model: TextModel) -> bool:
    return model.goal.labelled and bool(model.goal.label_choices(model))


def recover_estimated(
    model: TextModel, undone: Undone, generator: torch.Generator, budget: Budget, show: Callable[[str], None]
) -> Outcome:
    """The sentences of a batch by the estimate of its gradient; proved if together they explain it."""
    rounds = EstimatedRecovery(model, undone, generator, budget)
    with suppress(Stopped):  # in the middle of a round: what was recovered before it stands
        rounds.start()
        rounds.run(budget, show)
        rounds.replay()
    bag = {token: 1.0 for sentence in rounds.recovered for token in sentence.tokens}
    return Outcome(rounds.recovered, rounds.complete, {**rounds.bag, **bag}, rounds.reasons)


def _groups(model: TextModel, undone: Undone) -> list[list[Part]]:
    """Parts that see the same mixed states, group by group in the order of the model."""
    groups: list[list[Part]] = []
    for layer in range(len(model.adapter.parts)):
        if shows_every_token(model, layer):
            groups += [attention_parts(model, layer)] if layer else []
            groups.append(mixing_parts(model, layer))
    held = [[part for part in group if part.weight_name in undone.gradient.tensors] for group in groups]
    return [group for group in held if group][:GROUPS]


class EstimatedRecovery(EncoderRecovery):
    """The rounds of search on an estimated gradient."""

    # Shares are rough here, so no token is taken to stand in one place only.
    enough, promising, once = 0.0, WORTH_JUDGING, 2.0

    def __init__(self, model: TextModel, undone: Undone, generator: torch.Generator, budget: Budget) -> None:
        assert undone.errors is not None
        self.undone, self.errors, self.budget = undone, undone.errors, budget
        self.judges: list[tuple[Part, Fit]] = []
        super().__init__(model, undone.gradient, generator)
        self.groups = _groups(model, undone)
        self.mixed = self.groups[0]
        self.removed: dict[str, Tensor] = {}
        self._fit: Fit | None = None

    def _read_rows(self) -> Tensor:
        """All: rows that did not move have errors too."""
        return torch.arange(self.model.vocabulary_size, device=self.model.device)

    @property
    def _differentiated(self) -> set[str]:
        return set(self.left) | {part.weight_name for group in self.groups for part in group}

    def _prepare(self) -> None:
        """Fits take time, so they are made within the budget."""

    def start(self) -> None:
        """Fit the spans by which sentences are judged, against the untouched estimate."""
        tokens = len(self._tokens()) + 2 * (self.size or 1)
        for parts in self.groups:
            fit = self._fitted(parts, self.judges[0][1].span.rank if self.judges else tokens)
            if fit is not None:
                self.judges.append((parts[0], fit))
            elif not self.judges:
                return
        self._fit = self.judges[0][1]

    def _fitted(self, parts: list[Part], rank: int) -> Fit | None:
        matrices = [
            part.of(self.left[part.weight_name] if part.weight_name in self.left else self._sent(part))
            for part in parts
        ]
        errors = [part.of(self._errors_left(part.weight_name)) for part in parts]
        return denoised(torch.cat(matrices), torch.cat(errors), rank, self.budget)

    def _sent(self, part: Part) -> Tensor:
        return self.update.tensors[part.weight_name].double()

    def _errors_left(self, name: str) -> Tensor:
        """Errors once sentences are removed: of a saturated entry not even the size of what was removed is known."""
        errors = self.errors[name].double()
        if name not in self.removed:
            return errors
        saturated = errors > SATURATED * self.update.tensors[name].double().abs()
        return torch.where(saturated, errors + self.removed[name].abs(), errors)

    def _rest(self, name: str) -> Tensor:
        """What is left of a tensor without the sentences removed; nothing of saturated entries that these explain."""
        sent = self.update.tensors[name].double()
        rest = sent - self.removed[name]
        saturated = self.errors[name] > SATURATED * self.update.tensors[name].abs()
        return torch.where(saturated & (rest.sign() != sent.sign()), torch.zeros_like(rest), rest)

    # --- a round ----------------------------------------------------------------------------------

    def _spans(self, narrow: bool) -> tuple[Span, Span] | None:
        if not self.judges:
            self.reasons.append(rank_hidden(self.update, self.model, self.mixed))
            return None
        if self._fit is None:
            gone = sum(len(sentence.tokens) for sentence in self.recovered)
            rank = max(8, self.judges[0][1].span.rank - gone + 2)
            self._fit = self._fitted(self.groups[0], rank) or self.judges[0][1]
        return self._fit.span, self._fit.span

    def _fits(self, span: Span) -> tuple[Tensor, Tensor]:
        """Which tokens moved is known exactly; that noise leaves no other test of single tokens costs little."""
        tokens = self._tokens()
        length = self._longest() or 1
        self.seen = tokens, length
        return tokens, torch.ones(len(tokens), length, dtype=torch.bool, device=tokens.device)

    def _rows(self, name: str) -> Tensor:
        """The rows of an embedding that moved, and of which something is left."""
        sent = self.update.tensors[name].double()
        moved = (sent != 0).any(dim=1).nonzero()[:, 0]
        if name not in self.removed:
            return moved
        clear = self.errors[name][moved] < SATURATED * sent[moved].abs()
        squares = (self.left[name][moved] / self.errors[name][moved].double()).square() * clear
        return moved[squares.sum(dim=1) > GONE * clear.sum(dim=1).clamp_min(1)]

    def _accept(self, tokens: list[int]) -> bool:
        certificate, each = self._judge(tokens)
        if certificate.energy > certificate.threshold or each > ACCEPTED_EACH:
            return False
        self.recovered.append(Recovered(tokens, certificate, confidence=CONFIDENCE))
        self._remove(tokens, certificate)
        return True

    def _judge(self, tokens: list[int]) -> tuple[Certificate, float]:
        """A sentence's energy and what noise allows, over all layers looked at; and the worst of the layers."""
        ids = torch.tensor([tokens], device=self.model.device)
        with torch.no_grad():
            seen = Probe(self.model, [part for part, _ in self.judges])(input_ids=ids, mask=torch.ones_like(ids))
        energy = threshold = worst = 0.0
        for (_, fit), states in zip(self.judges, seen, strict=True):
            apart = float(fit.span.distances(states[0]).square().mean())
            expected = max(float(fit.span.floors(states[0]).square().mean()), CLOSE)
            energy, threshold = energy + apart, threshold + ACCEPTED * expected
            worst = max(worst, apart / expected)
        return Certificate(energy, threshold, strict=False), worst

    def _remove(self, tokens: list[int], certificate: Certificate) -> None:
        """Take the sentence out of what is left, if its label shows."""
        layer, part = next(
            (layer, part.role)
            for layer, parts in enumerate(self.model.adapter.parts)
            for part in parts.values()
            if part is self.mixed[0]
        )
        double, fit = self._double(), self.judges[0][1]
        rows = len(self.mixed[0].of(self.update.tensors[self.mixed[0].weight_name]))
        fitted = {self.mixed[0].weight_name: fit.matrix[:rows]}
        same = double.adapter.parts[layer][part]
        own = find_contribution(double, fitted, fit.span, same, tokens, None, MISFIT, NOISE_SHARE)
        if own is None or own.share is None:
            return
        times = max(1, round(self.size * own.share)) if self.size else 1
        share = times / self.size if self.size else own.share
        gradient = sentence_gradient(self._double(), tokens, own.label, list(self.left))
        self.recovered[-1] = Recovered(tokens, certificate, own.label, share, confidence=CONFIDENCE)
        for name, tensor in gradient.items():
            self.removed[name] = self.removed.get(name, torch.zeros_like(tensor)) + share * tensor
            self.left[name] = self._rest(name)
        self._fit = None

    @property
    def complete(self) -> bool:
        return bool(self.recovered) and self.size is not None and self.count >= self.size

    # --- proof ------------------------------------------------------------------------------------

    def replay(self) -> None:
        """Mark the sentences as proved if their gradient explains the estimate, entry by entry."""
        if not self.complete or self.size is None:
            return
        names = [part.weight_name for group in self.groups for part in group]
        choices = [[s.label] if s.label is not None else range(self.model.num_labels) for s in self.recovered]
        if math.prod(map(len, choices)) > MOST_LABELLINGS:
            return
        gradients = []
        for sentence, labels in zip(self.recovered, choices, strict=True):
            self.budget.check()
            share = sentence.share or 1 / self.size
            own_pass = SentenceGradients(self._double(), sentence.tokens)
            every = [own_pass.under(label, names) for label in labels]
            gradients.append([{name: share * tensor for name, tensor in own.items()} for own in every])

        def misfit(picks: Sequence[int], name: str) -> float:
            total = sum(own[pick][name] for own, pick in zip(gradients, picks, strict=True))
            return self._misfit(name, torch.as_tensor(total))

        options = itertools.product(*(range(len(labels)) for labels in choices))
        picks = min(options, key=lambda option: misfit(option, names[0]))
        if max(misfit(picks, name) for name in names) > REPLAYED:
            return
        self.recovered = [
            dataclasses.replace(
                sentence,
                certificate=dataclasses.replace(sentence.certificate, strict=True),
                label=labels[pick],
                share=sentence.share or 1 / self.size,
            )
            for sentence, labels, pick in zip(self.recovered, choices, picks, strict=True)
        ]

    def _misfit(self, name: str, gradient: Tensor) -> float:
        """The mean squared miss of all entries that have a size, in units of their errors; infinite if none has."""
        sent, errors = self.update.tensors[name].double(), self.errors[name].double()
        clear = errors < 0.3 * sent.abs()
        if not bool(clear.any()):
            return math.inf
        usual = gradient.norm(dim=1, keepdim=True) * gradient.norm(dim=0) / gradient.norm().clamp_min(1e-300)
        errors = (errors.square() + (ARITHMETIC * usual).square()).sqrt()
        return float(((sent - gradient)[clear] / errors[clear]).square().mean())
