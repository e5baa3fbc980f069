"""A single sentence through noise: grown by what its tokens explain, finished by its likelihood.

Where one sentence made the update, what it does not explain must be noise alone. Tokens whose rows of the output
layer stand out of the rest are wrong or missing, and of all edits with them the likeliest is taken, until nothing
stands out any more. That settles the first token too, which nothing predicts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from gradleak.attacks.evidence.likelihood import Batches, Likelihood
from gradleak.attacks.evidence.rows import clearly_longer
from gradleak.attacks.exact.contribution import sentence_gradient
from gradleak.attacks.film.attribution import Attribution
from gradleak.attacks.film.beam import BeamSettings, Grown, NGrams, search
from gradleak.attacks.film.readers import UpdateReader
from gradleak.attacks.film.sentence_bounds import end_tokens
from gradleak.core.budget import Budget, Stopped
from gradleak.models.text import TextModel
from gradleak.updates.update import Update

# Sentences of a search whose likelihoods are compared.
COMPARED = 8
# Tokens that stand out of the rest, and weak places of a sentence, with which edits are tried.
MISSING, PLACES = 3, 3
# The layers whose gradients are compared, counted from the head: those below say the same again, and cost as much.
LAYERS = 3

# Kinds of edits that are tried, one after the other, at most.
MOST_EDITS = 15

Ids = tuple[int, ...]
Show = Callable[[Sequence[int]], None]


@dataclass(frozen=True)
class Single:
    """A sentence, the share of the update without noise that it explains (1: all), and whether the rest is noise."""

    tokens: Ids
    explained: float
    whole: bool


class SingleReading:
    """Reads an update with noise as that of a single sentence."""

    def __init__(
        self,
        attribution: Attribution,
        update: Update,
        bag: Sequence[int],
        settings: BeamSettings,
        budget: Budget,
        show: Show,
    ) -> None:
        """`bag` are tokens that seem to be in the sentence."""
        self.model = model = attribution.model
        self.attribution, self.noise = attribution, attribution.noise
        self._settings, self._budget, self._show = settings, budget, show
        self._name = output_rows(model)
        self._rows = update.tensors[self._name].to(model.token_embedding)
        upper = tuple(f"{model.adapter.name_of(layer)}." for layer in model.adapter.layers[-LAYERS:])
        sent = {name: tensor for name, tensor in update.tensors.items() if name.startswith(upper)}
        self._likelihood = Likelihood(model, sent, self.noise, budget=budget)
        # What of these layers is not noise.
        squares = sum(float(tensor.double().square().sum()) for tensor in sent.values())
        self._signal = squares - self.noise**2 * sum(tensor.numel() for tensor in sent.values())
        # An expected end leaves hardly a trace, so ends are always tried.
        self._ends = [token for token in sorted(end_tokens(model)) if bool(model.text_tokens[token])]
        self._bag = torch.tensor(sorted({*bag, *self._ends}), device=model.device)

    def read(self, first: Sequence[int]) -> Single | None:
        """The likeliest sentence, grown from some first tokens; None if nothing shows one."""
        grown = self._grown([Grown((token,), (), ()) for token in first]) if self._signal > 0 else []
        if not grown or self._budget.over:
            return None
        best, value = self._likeliest(grown)
        missing = self._missing(best)
        edits = deque([self._other_first, self._exchanged, self._other_end, self._edited, self._regrown])
        in_vain = 0
        for _ in range(MOST_EDITS):
            if not missing or in_vain == len(edits) or self._budget.over:
                break
            self._show(best)
            try:
                candidate, better = self._likeliest(edits[0](best, missing))
            except Stopped:  # the time is over: the best so far
                break
            in_vain += 1
            if better > value:
                best, value, missing, in_vain = candidate, better, self._missing(candidate), 0
            edits.rotate(-1)
        return Single(best, min(1.0, 2 * self.noise**2 * value / self._signal), not missing)

    def _grown(self, openings: Sequence[Grown]) -> list[Ids]:
        """The sentences of a search whose tokens explain most."""
        seen = search(
            UpdateReader(self.attribution, self._bag),
            self._bag,
            openings,
            self._settings,
            ends=self._ends.__contains__,
            forbidden=NGrams(self._settings.repeat),
            budget=self._budget,
            show=self._show,
        )
        best = sorted(seen, key=lambda sentence: sentence.surplus, reverse=True)
        return [sentence.tokens for sentence in best[:COMPARED]]

    def _likeliest(self, sentences: Sequence[Ids]) -> tuple[Ids, float]:
        """The sentence with the highest likelihood, and that."""
        possible = [each for each in dict.fromkeys(sentences) if 1 < len(each) <= self._settings.length]
        if not possible:
            return (), float("-inf")
        batch = self.model.pad(possible)
        ids, mask = batch.ids[:, None], batch.mask[:, None]
        values = self._likelihood.values(Batches(ids, mask, ids))
        best = int(values.argmax())
        return possible[best], float(values[best])

    def _missing(self, tokens: Ids) -> list[int]:
        """The tokens whose rows stand out of what a sentence leaves of the update, those that do most first."""
        own = sentence_gradient(self.model, list(tokens), None, [self._name])
        sizes = (self._rows - own[self._name].to(self._rows)).norm(dim=1)
        usual = self.noise * self._rows.shape[1] ** 0.5
        ranked = clearly_longer(sizes, usual, self._rows.shape[1])
        ranked = ranked[sizes[ranked].argsort(descending=True)]
        return [token for token in ranked.tolist() if bool(self.model.text_tokens[token])]

    def _tried(self, tokens: Ids, missing: Sequence[int]) -> list[int]:
        """Tokens to put in: those that stand out most, and of those that the sentence does not have."""
        new = [token for token in missing if token not in tokens]
        return list(dict.fromkeys([*new[:MISSING], *missing[:MISSING]]))

    def _other_first(self, tokens: Ids, missing: Sequence[int]) -> list[Ids]:
        others = [(token, *tokens[gone:]) for token in self._tried(tokens, missing) for gone in (0, 1)]
        return [tokens[1:], *others]

    def _exchanged(self, tokens: Ids, missing: Sequence[int]) -> list[Ids]:
        """With other tokens in the places of those that stand out."""
        places = [place for place, token in enumerate(tokens) if token in missing[:MISSING]]
        return [
            (*tokens[:place], token, *tokens[place + 1 :])
            for place in places
            for token in self._tried(tokens, missing)
            if token != tokens[place]
        ]

    def _other_end(self, tokens: Ids, missing: Sequence[int]) -> list[Ids]:
        last = len(tokens)
        shorter = [tokens[:kept] for kept in range(2, last)]
        tried = dict.fromkeys([*self._tried(tokens, missing), *self._ends])
        return [*shorter, *((*tokens[:kept], token) for token in tried for kept in (last - 1, last))]

    def _edited(self, tokens: Ids, missing: Sequence[int]) -> list[Ids]:
        """With edits at the places whose tokens explain least."""
        return [
            edited
            for place in self._weak_places(tokens)
            for edited in edits_at(tokens, place, self._tried(tokens, missing))
        ]

    def _regrown(self, tokens: Ids, missing: Sequence[int]) -> list[Ids]:
        """Grown anew from the first of those places."""
        kept = min(self._weak_places(tokens))
        return self._grown([Grown(tokens[:kept], (0.0,) * (kept - 1), (1.0,) * (kept - 1))])

    def _weak_places(self, tokens: Ids) -> list[int]:
        (shares,) = self.attribution.shares([tokens])
        weakest: list[int] = (shares.argsort()[:PLACES] + 1).tolist()
        return weakest


def edits_at(tokens: Ids, place: int, others: Sequence[int]) -> list[Ids]:
    """A sentence without the token at a place, exchanged with the one before it, and with others there.

    >>> edits_at((1, 2, 3), 2, [9])
    [(1, 2), (1, 3, 2), (1, 2, 9), (1, 2, 9, 3)]
    """
    before, own, after = tokens[:place], tokens[place], tokens[place + 1 :]
    return [
        (*before, *after),
        (*before[:-1], own, *before[-1:], *after),
        *(edited for other in others for edited in ((*before, other, *after), (*before, other, own, *after))),
    ]


def output_rows(model: TextModel) -> str:
    """The name of the output layer's matrix, a row per token."""
    adapter = model.adapter
    return adapter.parameter_of(adapter.token_embedding if adapter.tied else adapter.output_layer)
