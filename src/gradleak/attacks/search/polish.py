"""Polishing: the answer's tokens themselves, moved and replaced until no change explains the update better.

The search before it works on free embeddings, where a wrong order can fit almost as well as the right order. Real
tokens cannot bend, so among them the right sentence stands out: its distance is zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.attacks.evidence.hints import Hints
from gradleak.attacks.search.reorder import propose
from gradleak.attacks.search.vocabulary import Vocabulary
from gradleak.core.budget import Budget
from gradleak.core.progress import Progress
from gradleak.matching.dummies import Dummies
from gradleak.matching.engine import Engine
from gradleak.models.text import TextModel

# Other tokens tried for a position: those nearest to where the search had put it.
ALTERNATIVES = 4
# Further tokens where the update hints at some.
HINTED = 8
# Orders tried in a round.
ORDERS = 100
# Below this distance the update is explained: nothing is left to find.
SOLVED = 1e-4
# Rounds without a better candidate after which a row is done; every round draws other moves.
FAILURES = 2


@dataclass
class _Row:
    """A guess in tokens: (sentences, positions), its distance, and how often nothing better was found."""

    tokens: Tensor
    distance: float
    failures: int = 0

    @property
    def done(self) -> bool:
        return self.distance < SOLVED or self.failures >= FAILURES


def polish(
    engine: Engine,
    model: TextModel,
    answer: Dummies,
    fixed: Tensor,
    vocabularies: Sequence[Vocabulary],
    hints: Sequence[Hints | None],
    *,
    rounds: int,
    generators: Sequence[torch.Generator],
    budget: Budget,
    progress: Progress,
) -> tuple[Tensor, Tensor]:
    """Tokens (rows, sentences, positions) that start as the answer's nearest and only get closer to the update.

    With them their distances, (rows,).
    """
    near = [
        _alternatives(vocabulary, hint, embeds)
        for vocabulary, hint, embeds in zip(vocabularies, hints, answer.embeds, strict=True)
    ]
    rows = [_Row(tokens[..., 0].clone(), float("inf")) for tokens in near]
    frame = _Frame(model, answer, fixed)
    values = engine.values(Dummies.concatenate([frame.guesses(k, row.tokens[None]) for k, row in enumerate(rows)]))
    for row, value in zip(rows, values.tolist(), strict=True):
        row.distance = value
    for number in range(rounds):
        for sentence in range(answer.embeds.shape[1]):
            active = [k for k, row in enumerate(rows) if not row.done]
            if not active or budget.tick():
                break
            proposals = [
                _variants(rows[k].tokens, sentence, ~fixed[k, sentence], near[k], generators[k]) for k in active
            ]
            values = engine.values(
                Dummies.concatenate([frame.guesses(k, p) for k, p in zip(active, proposals, strict=True)])
            )
            for k, proposal, own in zip(active, proposals, values.split([len(p) for p in proposals]), strict=True):
                _accept(rows[k], proposal, own)
        progress.advance(number + 1, loss=sum(row.distance for row in rows) / len(rows))
    return torch.stack([row.tokens for row in rows]), values.new_tensor([row.distance for row in rows])


def _alternatives(vocabulary: Vocabulary, hint: Hints | None, embeds: Tensor) -> Tensor:
    """Tokens to try at every place, (sentences, positions, tokens): the nearest first, then those hinted at."""
    near = vocabulary.near(embeds, ALTERNATIVES + 1)
    if hint is None:
        return near
    likely = torch.zeros(*embeds.shape[:2], min(HINTED, hint.places.shape[1]), dtype=near.dtype, device=near.device)
    width = min(likely.shape[1], len(hint.places))
    likely[:, :width] = hint.places[:width, : likely.shape[2]]
    likely[:, width:] = near[:, width:, :1]
    return torch.cat([near, likely], dim=-1)


def _accept(row: _Row, proposal: Tensor, distances: Tensor) -> None:
    best = int(distances.argmin())
    if float(distances[best]) < row.distance:
        row.tokens, row.distance, row.failures = proposal[best], float(distances[best]), 0
    else:
        row.failures += 1


def _variants(tokens: Tensor, sentence: int, free: Tensor, near: Tensor, generator: torch.Generator) -> Tensor:
    """Other orders of a sentence's tokens, and other tokens at a place: (variants, sentences, positions)."""
    places = free.nonzero()[:, 0]
    orders = torch.tensor(propose(len(places), ORDERS, generator), device=places.device)[1:]
    moved = tokens.repeat(len(orders), 1, 1)
    moved[:, sentence, places] = tokens[sentence, places[orders]]
    replaced = []
    for place in places.tolist():
        for other in near[sentence, place].tolist():
            if other != int(tokens[sentence, place]):
                changed = tokens.clone()
                changed[sentence, place] = other
                replaced.append(changed)
    return torch.cat([moved, *([torch.stack(replaced)] if replaced else [])])


class _Frame:
    """Makes dummies of tokens: special tokens and padding stay as the answer has them."""

    def __init__(self, model: TextModel, answer: Dummies, fixed: Tensor) -> None:
        self.model, self.answer, self.fixed = model, answer, fixed

    def guesses(self, row: int, tokens: Tensor) -> Dummies:
        """Dummies for (guesses, sentences, positions) tokens of a row."""
        here = self.answer.row(row).repeat(len(tokens))
        fixed = self.fixed[row]
        embeds = torch.where(fixed[..., None], here.embeds, self.model.embed(tokens).to(here.embeds))
        if self.model.goal.autoregressive:
            here.labels.copy_(torch.where(fixed, here.labels, tokens))
        return here.with_embeds(embeds)
