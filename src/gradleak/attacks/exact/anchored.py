"""Search for an encoder's sentences around tokens that occur once, where the spans of the batch are full.

At such a token, an anchor, a guess at its whole sentence can be tested by the first layer alone
(`spans/first_layer.py`), whatever else is in the batch. From random sentences tokens are exchanged until the test is
passed. What passes is proved by its own gradient: the anchor's row of the token embedding must be exactly the one
that the update holds, which depends on every token of the sentence through the whole model, on its label and on its
weight.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from gradleak.attacks.exact.contribution import Contribution, sentence_gradient
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
from gradleak.models.text import TextModel

# A token is tried at positions that hold this share of it, and taken for an anchor where it has that much.
LEAST_SHARE, ANCHORED = 0.005, 0.5
# A sentence may end where the last special token has this share.
LEAST_END = 0.002
# Starts for every length, in the first round and at most.
STARTS, MOST_STARTS = 4, 16
# In later rounds the best sentences of some lengths are tried again, in copies with some tokens drawn anew.
KICKS, KEPT, COPIES, KICKED = 4, 3, 6, 2.5
STEPS = 60
# Up to this energy a sentence is checked; right ones have 1e-12, the lowest wrong ones seen had 1e-4.
PROMISING = 1e-7
# So many of the best of a search go on with all tokens at all positions.
POLISHED = 1
# How far a row of the token embedding may be from a sentence's own, relative to it, to be explained by it.
ROW_MISFIT = 1e-3
# Numbers that one step may compare at a time.
AT_ONCE = 1 << 21


def can_anchor(model: TextModel, tensors: Mapping[str, Tensor]) -> bool:
    """Whether the first layer can be solved: by its parts, by what was sent, and as a made-up sentence shows."""
    if not layer_is_plain(model) or not model.goal.label_choices(model) or not model.goal.one_per_text:
        return False
    names = names_needed(model)
    if any(name not in tensors for name in names):
        return False
    special = {*model.prefix, *model.suffix, model.tokenizer.pad_token_id or 0}
    inner = [token for token in range(model.vocabulary_size) if token not in special][-3:]
    tokens = [*model.prefix, *inner, *model.suffix]
    gradient = sentence_gradient(model, tokens, model.goal.label_choices(model)[0], names)
    distinct = torch.tensor(sorted(set(tokens)), device=model.device)
    layer = FirstLayer(model, gradient, distinct, len(tokens))
    number = {int(token): place for place, token in enumerate(distinct)}
    picks = torch.tensor([[number[token] for token in tokens]], device=model.device)
    anchor = layer.anchor(int(picks[0, len(model.prefix)]), len(model.prefix))
    places = torch.arange(len(tokens), device=model.device)
    energy, _ = energies(anchor, places, picks, torch.ones_like(picks, dtype=torch.bool))
    return layer.solved and float(energy) < PROMISING


class AnchoredSearch:
    """Looks for the sentences of what is left of an update, around one anchor after the other."""

    def __init__(
        self, model: TextModel, tensors: Mapping[str, Tensor], tokens: Tensor, length: int, generator: torch.Generator
    ) -> None:
        self.model, self.generator = model, generator
        self.layer = FirstLayer(model, tensors, tokens, length)
        special = torch.tensor([*model.prefix, *model.suffix, model.tokenizer.pad_token_id or 0])
        self.inner = ~torch.isin(tokens, special.to(tokens))
        number = {int(token): place for place, token in enumerate(tokens)}
        frame = [number.get(token) for token in (*model.prefix, *model.suffix)]
        self.usable = self.layer.solved and None not in frame and bool(self.inner.any())
        if not self.usable:
            return
        self.prefix = [number[token] for token in model.prefix]
        self.suffix = [number[token] for token in model.suffix]
        self.shares = self.layer.shares()
        weights = torch.where(self.shares > LEAST_SHARE, self.shares, 0.0) * self.inner[:, None]
        most = max(1, int((weights > 0).sum(dim=0).max()))
        best = weights.T.topk(most, dim=1)
        self.choices, self.weights = best.indices, best.values  # (positions, choices)
        self.everywhere = self.inner.nonzero()[:, 0].expand(length, -1)

    @property
    def lengths(self) -> list[int]:
        """Where a sentence can end."""
        shortest = len(self.prefix) + len(self.suffix) + 1
        if not self.suffix:
            return list(range(shortest, self.layer.length + 1))
        ends = (self.shares[self.suffix[-1]] > LEAST_END).nonzero()[:, 0].tolist()
        return [end + 1 for end in ends if end + 1 >= shortest]

    def anchors(self) -> Iterator[tuple[int, int, int]]:
        """Tokens that seem to occur once: their numbers, positions and ids, the clearest first."""
        largest = (self.shares * self.inner[:, None]).max(dim=1)
        for token in largest.values.argsort(descending=True).tolist():
            position = int(largest.indices[token])
            if float(largest.values[token]) < ANCHORED:
                return
            if len(self.prefix) <= position < self.layer.length - len(self.suffix):
                yield token, position, int(self.layer.tokens[token])

    def around(self, token: int, position: int, starts: int, budget: Budget) -> list[list[int]]:
        """Sentences that explain all that came back to a token at a position, if it occurs once."""
        lengths = [length for length in self.lengths if position < length - len(self.suffix)]
        if not lengths:
            return []
        anchor = self.layer.anchor(token, position)
        ends = torch.tensor(lengths, device=self.choices.device).repeat_interleave(starts)
        picks = self._starts(ends)
        picks[:, position] = token
        picks, ends, values = self._descend(anchor, picks, ends, self.choices, self.weights > 0, budget)
        for _ in range(0 if starts == STARTS else KICKS):
            if budget.over or float(values.min()) <= PROMISING:
                break
            best = _best_of_each(values, ends)[:KEPT]
            kicked, own = self._kicked(picks[best], ends[best], position)
            both = zip(
                (picks, ends, values),
                self._descend(anchor, kicked, own, self.choices, self.weights > 0, budget),
                strict=True,
            )
            picks, ends, values = (torch.cat([before[best], after]) for before, after in both)
        if float(values.min()) > PROMISING:
            best = values.argsort()[:POLISHED]
            allowed = torch.ones_like(self.everywhere, dtype=torch.bool)
            picks, ends, values = self._descend(anchor, picks[best], ends[best], self.everywhere, allowed, budget)
        good = (values <= PROMISING).nonzero()[:, 0]
        found = [self.layer.tokens[picks[row, : ends[row]]].tolist() for row in good.tolist()]
        return [list(each) for each in dict.fromkeys(map(tuple, found))]

    def _kicked(self, picks: Tensor, ends: Tensor, position: int) -> tuple[Tensor, Tensor]:
        """Copies of sentences in which some tokens are drawn anew."""
        picks, ends = picks.repeat_interleave(COPIES, dim=0), ends.repeat_interleave(COPIES)
        drawn = self._starts(ends)
        chance = KICKED / (ends[:, None] - len(self.prefix) - len(self.suffix)).clamp_min(1)
        moved = torch.rand(picks.shape, generator=self.generator).to(picks.device) < chance
        moved[:, position] = False
        return torch.where(moved, drawn, picks), ends

    def _starts(self, ends: Tensor) -> Tensor:
        """Random sentences of these lengths, as numbers of tokens, (sentences, positions)."""
        some = self.weights.any(dim=1, keepdim=True)
        usable = torch.where(some, self.weights, torch.ones_like(self.weights)).float().cpu()
        drawn = torch.multinomial(usable, len(ends), replacement=True, generator=self.generator).T
        picks = self.choices.T.gather(0, drawn.to(self.choices.device))
        picks[:, : len(self.prefix)] = torch.tensor(self.prefix, device=picks.device)
        for back, number in enumerate(reversed(self.suffix), start=1):
            picks.scatter_(1, (ends - back)[:, None], number)
        return picks

    def _descend(
        self, anchor: Anchor, picks: Tensor, ends: Tensor, choices: Tensor, allowed: Tensor, budget: Budget
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Exchange tokens, the best exchange first, until none helps; sentences, lengths and energies reached."""
        places = torch.arange(picks.shape[1], device=picks.device)
        live = places < ends[:, None]
        free = (
            (places >= len(self.prefix)) & (places < ends[:, None] - len(self.suffix)) & (places != anchor.position)
        )
        values, multiples = energies(anchor, places, picks, live)
        active = torch.arange(len(picks), device=picks.device)
        portion = max(1, AT_ONCE // (choices.numel() * anchor.wanted.shape[0]))
        for _ in range(STEPS):
            if not len(active) or budget.over or bool((values <= PROMISING).any()):
                break
            tried = []
            for rows in active.split(portion):
                each = flipped_energies(anchor, picks[rows], live[rows], multiples[rows], choices)
                tried.append(each.masked_fill(~(allowed & free[rows][..., None]), float("inf")).flatten(1).min(dim=1))
            best = torch.cat([each.values for each in tried])
            where = torch.cat([each.indices for each in tried])
            better = best < values[active]
            active, where = active[better], where[better]
            picks[active, where // choices.shape[1]] = choices.flatten()[where]
            values[active], multiples[active] = energies(anchor, places, picks[active], live[active])
        return picks, ends, values


def _best_of_each(values: Tensor, ends: Tensor) -> Tensor:
    """The rows with the lowest value of each length, the lowest first."""
    ranked = values.argsort(descending=True).tolist()
    lowest = {int(ends[row]): row for row in ranked}
    rows = torch.tensor(list(lowest.values()), device=values.device)
    return rows[values[rows].argsort()]


def explains_rows(
    model: TextModel, tensors: Mapping[str, Tensor], tokens: list[int], anchor: int
) -> tuple[Contribution, Certificate] | None:
    """A sentence's label, share and gradient if the row of a token that only it has is exactly its own; else None.

    `model` computes in float64, as what is left of the row is compared with rounding.
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
