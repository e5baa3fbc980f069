"""Search for an encoder's sentences around tokens that occur once, where the spans of the batch are full.

At such a token, an anchor, a guess at its whole sentence can be tested by the first layer alone
(`spans/first_layer.py`), whatever else is in the batch. Shares of tokens are moved until they explain the anchor
(`relaxed.py`); the likeliest sentence is read off, and tokens are exchanged until the test is passed. What passes is
proved by its own gradient: the anchor's row of the token embedding must be exactly the one that the update holds,
which depends on every token of the sentence through the whole model, on its label and on its weight.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import torch
from torch import Tensor

from gradleak.attacks.exact.contribution import Contribution, sentence_gradient
from gradleak.attacks.exact.relaxed import Places, places_of, relax
from gradleak.attacks.exact.slopes import scaled
from gradleak.attacks.spans.certify import Certificate
from gradleak.attacks.spans.first_layer import (
    Anchor,
    FirstLayer,
    energies,
    flipped_energies,
    layer_is_plain,
    names_needed,
)
from gradleak.core.budget import Budget
from gradleak.models.float64 import rows_stand_alone
from gradleak.models.text import TextModel

# A token stands where it has this share. One that has nearly all of it at one position stands nowhere else, and one
# that has half of it nowhere may stand anywhere.
LEAST_SHARE, HOME, SPREAD = 1e-3, 0.9, 0.5
# In later rounds shares are multiplied by random numbers first; the spread of their logarithms.
SHAKEN = 1.0
# Where shares leave less than this unexplained, sentences are read off, one for each of the likeliest ends.
NEAR, ENDS = 0.15, 2
# Exchanges until a sentence is given up.
STEPS = 12
# Up to this energy a sentence is checked; right ones have 1e-12, the lowest wrong ones seen had 1e-4.
PROMISING = 1e-7
# How far a row of the token embedding may be from a sentence's own, relative to it, to be explained by it.
ROW_MISFIT = 1e-3
# Numbers that one step may compare at a time.
AT_ONCE = 1 << 21


def can_anchor(model: TextModel, tensors: Mapping[str, Tensor]) -> bool:
    """Whether the first layer can be solved: by its parts, by what was sent, and as a made-up sentence shows."""
    if not layer_is_plain(model) or not model.goal.label_choices(model) or not model.goal.one_per_text:
        return False
    if len(model.suffix) != 1:
        return False
    names = names_needed(model)
    if any(name not in tensors for name in names):
        return False
    special = {*model.prefix, *model.suffix, model.tokenizer.pad_token_id or 0}
    inner = [token for token in range(model.vocabulary_size) if token not in special][-3:]
    tokens = [*model.prefix, *inner, *model.suffix]
    distinct = torch.tensor(sorted(set(tokens)), device=model.device)
    alone = rows_stand_alone(model)
    exact = model.to_float64(names, distinct if alone else None)
    gradient = sentence_gradient(exact, tokens, model.goal.label_choices(model)[0], names)
    rows = gradient[model.adapter.parameter_of(model.adapter.token_embedding)]
    layer = FirstLayer(model, gradient, distinct, rows if alone else rows[distinct], len(tokens))
    number = {int(token): place for place, token in enumerate(distinct)}
    picks = torch.tensor([[number[token] for token in tokens]], device=model.device)
    anchor = layer.anchor(int(picks[0, len(model.prefix)]), len(model.prefix))
    places = torch.arange(len(tokens), device=model.device)
    energy, _ = energies(anchor, places, picks, torch.ones_like(picks, dtype=torch.bool))
    return layer.solved and float(energy) < PROMISING


class AnchoredSearch:
    """Looks for the sentences of what is left of an update, around one anchor after the other."""

    def __init__(
        self,
        model: TextModel,
        tensors: Mapping[str, Tensor],
        tokens: Tensor,
        rows: Tensor,
        length: int,
        generator: torch.Generator,
    ) -> None:
        """`rows` are the token embedding's gradients of `tokens`."""
        self.generator = generator
        self.layer = FirstLayer(model, tensors, tokens, rows, length)
        special = torch.tensor([*model.prefix, *model.suffix, model.tokenizer.pad_token_id or 0])
        self.inner = ~torch.isin(tokens, special.to(tokens))
        number = {int(token): place for place, token in enumerate(tokens)}
        frame = [number.get(token) for token in (*model.prefix, *model.suffix)]
        self.usable = self.layer.solved and None not in frame and bool(self.inner.any())
        if not self.usable:
            return
        self.prefix, self.end = [number[token] for token in model.prefix], number[model.suffix[0]]
        self.shares = self.layer.shares()
        self.most = self.shares.max(dim=1)
        self.weights, self.alone = self._weights()

    def _weights(self) -> tuple[Tensor, Tensor]:
        """How likely tokens stand at positions, (positions, tokens), and which seem to occur once, and there."""
        shares, most = self.shares.T.float(), self.most.values
        weights = torch.where(shares > LEAST_SHARE, shares, 0.0)
        weights = torch.where(most < SPREAD, weights.clamp_min(LEAST_SHARE), weights)
        home = torch.zeros_like(weights, dtype=torch.bool).scatter_(0, self.most.indices[None], most[None] > HOME)
        weights = torch.where((most > HOME) & ~home, 0.0, weights)
        weights[:, ~self.inner] = 0
        weights[:, self.end] = self.shares[self.end].float().clamp_min(LEAST_SHARE)
        weights[: len(self.prefix)] = 0
        weights[range(len(self.prefix)), self.prefix] = 1
        return weights, home & self.inner

    def anchors(self, tried: Mapping[int, int]) -> Iterator[tuple[int, int, int]]:
        """Tokens that seem to occur once: their numbers, positions and ids, those tried least and clearest first."""
        clear = [n for n in range(len(self.inner)) if self.inner[n] and self.most.values[n] >= SPREAD]
        tokens = self.layer.tokens.tolist()
        for number in sorted(clear, key=lambda n: (tried.get(tokens[n], 0), -float(self.most.values[n]))):
            position = int(self.most.indices[number])
            if len(self.prefix) <= position < self.layer.length - 1:
                yield number, position, tokens[number]

    def around(
        self, token: int, position: int, read: Collection[int], shaken: bool, budget: Budget
    ) -> list[list[int]]:
        """Sentences that explain all that came back to a token at a position, if it occurs once.

        `read` are tokens that were found elsewhere since. With `shaken` the search begins somewhere else each time.
        """
        weights, alone = self.weights.clone(), self.alone.clone()
        if shaken:
            drawn = torch.randn(weights.shape, generator=self.generator).to(weights.device)
            weights = weights * (SHAKEN * drawn).exp()
        gone = torch.isin(self.layer.tokens, torch.tensor([*read], device=self.layer.tokens.device).long())
        weights[:, gone & self.inner & (self.most.values > HOME)] = 0
        weights[:, token] = weights[position] = 0
        alone[:, token] = alone[position] = False
        weights[position, token] = 1
        weights[: position + 1, self.end] = 0
        anchor = self.layer.anchor(token, position)
        places, left = relax(anchor, places_of(weights, alone, self.end), self.layer.anchor, budget)
        if not left < NEAR:
            return []
        found = self._exchange(anchor, *self._likeliest(places, token, position), budget)
        return [list(each) for each in dict.fromkeys(found)]

    def _likeliest(self, places: Places, token: int, position: int) -> tuple[Tensor, Tensor]:
        """The likeliest sentences, as numbers of tokens, and their lengths: one for each of some ends."""
        shares = torch.zeros_like(self.weights)
        shares[places.positions, places.tokens] = places.shares
        ends = shares[:, self.end].topk(min(ENDS, len(shares)))
        lengths = ends.indices[(ends.values > 0)] + 1
        shares[:, ~self.inner] = -1.0
        picks = shares.argmax(dim=1)
        picks[: len(self.prefix)] = torch.tensor(self.prefix, device=picks.device)
        picks[position] = token
        picks = picks.repeat(len(lengths), 1)
        return picks.scatter_(1, lengths[:, None] - 1, self.end), lengths

    def _exchange(self, anchor: Anchor, picks: Tensor, lengths: Tensor, budget: Budget) -> list[tuple[int, ...]]:
        """Exchange tokens, the best exchange first, until one sentence fits or none gets better; those that fit."""
        places = torch.arange(picks.shape[1], device=picks.device)
        live = places < lengths[:, None]
        free = (places >= len(self.prefix)) & (places < lengths[:, None] - 1) & (places != anchor.position)
        choices = self.inner.nonzero()[:, 0].expand(len(places), -1)
        values, multiples = energies(anchor, places, picks, live)
        active = torch.arange(len(picks), device=picks.device)
        portion = max(1, AT_ONCE // (choices.numel() * anchor.wanted.shape[0]))
        for _ in range(STEPS):
            if not len(active) or budget.over or bool((values <= PROMISING).any()):
                break
            tried = []
            for rows in active.split(portion):
                each = flipped_energies(anchor, picks[rows], live[rows], multiples[rows], choices)
                tried.append(each.masked_fill(~free[rows][..., None], float("inf")).flatten(1).min(dim=1))
            best = torch.cat([each.values for each in tried])
            where = torch.cat([each.indices for each in tried])
            better = best < values[active]
            active, where = active[better], where[better]
            picks[active, where // choices.shape[1]] = choices.flatten()[where]
            values[active], multiples[active] = energies(anchor, places, picks[active], live[active])
        good = (values <= PROMISING).nonzero()[:, 0].tolist()
        return [tuple(self.layer.tokens[picks[row, : lengths[row]]].tolist()) for row in good]


def explains_rows(
    model: TextModel, tensors: Mapping[str, Tensor], tokens: list[int], anchor: int
) -> tuple[Contribution, Certificate] | None:
    """A sentence's label, share and gradient if the row of a token that only it has is exactly its own; else None.

    `model` computes in float64, as what is left of the row is compared with rounding; `anchor` is the row.
    """
    table = model.adapter.parameter_of(model.adapter.token_embedding)
    row = tensors[table][anchor].double()
    found: list[Contribution] = []
    for label in model.goal.label_choices(model):
        gradient = sentence_gradient(model, tokens, label, list(tensors))
        own = gradient[table][anchor]
        share = float((row @ own) / (own @ own).clamp_min(1e-300))
        misfit = float((row - share * own).norm() / row.norm().clamp_min(1e-300))
        if share > 0 and misfit < ROW_MISFIT:
            found.append(Contribution(label, share, misfit, scaled(gradient, share), 1))
    best = min(found, key=lambda each: each.misfit, default=None)
    return None if best is None else (best, Certificate(best.misfit**2, ROW_MISFIT**2, strict=True))
