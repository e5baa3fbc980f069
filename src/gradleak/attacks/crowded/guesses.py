"""What may come next in a sentence of a crowded update, by the language model and by shares of the update."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradleak.attacks.crowded.evidence import GUESS, compared
from gradleak.attacks.film.attribution import Attribution
from gradleak.models.text import TextModel
from gradleak.updates.update import Update

# Beginnings that are followed at a time, and tokens tried after each.
FOLLOWED, AFTER = 24, 12


class Guesses:
    """What may come next, by the language model and by the shares of an update that tokens explain."""

    def __init__(self, model: TextModel, update: Update, bag: Sequence[int]) -> None:
        self.model, self.attribution = model, Attribution(model, update, noise=0.0)
        self.bag = torch.tensor(list(bag), device=model.device)

    def begin(self, sentence: tuple[int, ...]) -> GuessedOn:
        """A reading that has read a beginning."""
        return GuessedOn(self, sentence)

    def values(self, plain: Tensor, moved: Tensor, bag: Tensor) -> Tensor:
        """What speaks for each token of a bag after states, (rows, bag)."""
        log_probs, shares = compared(self.attribution, plain, moved, bag)
        return log_probs + GUESS * shares if self.attribution.unit else log_probs

    @torch.no_grad()
    def last_ones(self, sentence: tuple[int, ...], usual: Sequence[int]) -> list[int]:
        """The tokens that a sentence may end with, likeliest first: those of the bag, and usual ones."""
        bag = torch.tensor(sorted({*self.bag.tolist(), *usual}), device=self.bag.device)
        plain, moved = self.attribution.reading().states(self.bag[list(sentence)][None])
        return [int(bag[n]) for n in self.values(plain[:, -1], moved[:, -1], bag)[0].argsort(descending=True)]


class GuessedOn:
    """Beginnings that are read on token by token."""

    def __init__(self, guesses: Guesses, sentence: tuple[int, ...]) -> None:
        self.guesses, self._reading = guesses, guesses.attribution.reading()
        self._unread = guesses.bag[list(sentence)][None]

    @torch.no_grad()
    def grown(self, beams: Sequence[tuple[int, ...]], scores: Tensor) -> tuple[list[tuple[int, ...]], Tensor]:
        """The likeliest beginnings that are a token longer, and what speaks for each."""
        plain, moved = self._reading.states(self._unread)
        values = self.guesses.values(plain[:, -1], moved[:, -1], self.guesses.bag)
        best = values.topk(min(AFTER, values.shape[1]), dim=1)
        totals = (scores[:, None].to(best.values) + best.values - best.values[:, :1].mean()).flatten()
        order = totals.topk(min(FOLLOWED, len(totals)))
        rows, places = order.indices // best.values.shape[1], order.indices % best.values.shape[1]
        numbers = best.indices[rows, places]
        self._reading.keep(rows)
        self._unread = self.guesses.bag[numbers][:, None]
        return [
            (*beams[row], number) for row, number in zip(rows.tolist(), numbers.tolist(), strict=True)
        ], order.values
