"""Polishing: the answer's tokens themselves, moved and replaced until no change explains the update better.

The search before it works on free embeddings, where a wrong order can fit almost as well as the right order. Real
tokens cannot bend, so among them the right sentence stands out: its distance is zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
# Changes of a round that are taken at once, at most.
MOST_JOINED = 10
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
    before: tuple[Tensor, Tensor],
    *,
    rounds: int,
    generators: Sequence[torch.Generator],
    budget: Budget,
    progress: Progress,
) -> tuple[Tensor, Tensor]:
    """Tokens (rows, sentences, positions) that start as the answer's nearest and only get closer to the update.

    With them their distances, (rows,). `before` are those of an earlier polish, from which a row goes on unless the
    nearest are closer.
    """
    near = [
        _alternatives(vocabulary, hint, embeds)
        for vocabulary, hint, embeds in zip(vocabularies, hints, answer.embeds, strict=True)
    ]
    rows = [_Row(tokens[..., 0].clone(), float("inf")) for tokens in near]
    frame = _Frame(model, answer, fixed)
    values = frame.distances(engine, {k: row.tokens[None] for k, row in enumerate(rows)})
    for k, (row, tokens, distance) in enumerate(zip(rows, *before, strict=True)):
        row.distance = float(values[k])
        if float(distance) <= row.distance:
            row.tokens, row.distance = tokens.clone(), float(distance)
    for number in range(rounds):
        for sentence in range(answer.embeds.shape[1]):
            active = [k for k, row in enumerate(rows) if not row.done]
            if not active or budget.tick():
                break
            alone = {
                k: _variants(rows[k].tokens, sentence, ~fixed[k, sentence], near[k], generators[k]) for k in active
            }
            distances = frame.distances(engine, alone)
            joined = {k: _joined(rows[k], alone[k], distances[k]) for k in active}
            of_joined = frame.distances(engine, joined)
            for k in active:
                _accept(rows[k], torch.cat([alone[k], joined[k]]), torch.cat([distances[k], of_joined[k]]))
        progress.advance(number + 1, loss=sum(row.distance for row in rows) / len(rows))
    return torch.stack([row.tokens for row in rows]), before[1].new_tensor([row.distance for row in rows])


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


def _joined(row: _Row, variants: Tensor, distances: Tensor) -> Tensor:
    """Changes that help and touch no place in common, the best two at once, the best three, and so on."""
    touched, together, guesses = torch.zeros_like(row.tokens, dtype=torch.bool), row.tokens, [row.tokens]
    for number in distances.argsort().tolist():
        if distances[number] >= row.distance or len(guesses) > MOST_JOINED:
            break
        changed = variants[number] != row.tokens
        if not bool((changed & touched).any()):
            touched, together = touched | changed, torch.where(changed, variants[number], together)
            guesses.append(together)
    return torch.stack(guesses)[2:]  # without the present tokens and the best change alone


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
    """Judges tokens: special tokens and padding stay as the answer has them."""

    def __init__(self, model: TextModel, answer: Dummies, fixed: Tensor) -> None:
        self.model, self.answer, self.fixed = model, answer, fixed

    def distances(self, engine: Engine, guesses: Mapping[int, Tensor]) -> dict[int, Tensor]:
        """Of every row's guesses, all of them in one call."""
        sizes = [len(own) for own in guesses.values()]
        if not sum(sizes):
            return {row: self.answer.embeds.new_zeros(0) for row in guesses}
        values = engine.values(
            Dummies.concatenate([self.guesses(row, own) for row, own in guesses.items() if len(own)])
        )
        return dict(zip(guesses, values.split(sizes), strict=True))

    def guesses(self, row: int, tokens: Tensor) -> Dummies:
        """Dummies for (guesses, sentences, positions) tokens of a row."""
        here = self.answer.row(row).repeat(len(tokens))
        fixed = self.fixed[row]
        embeds = torch.where(fixed[..., None], here.embeds, self.model.embed(tokens).to(here.embeds))
        if self.model.goal.autoregressive:
            here.labels.copy_(torch.where(fixed, here.labels, tokens))
        return here.with_embeds(embeds)
