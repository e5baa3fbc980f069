"""A single sentence through noise: grown by what its tokens explain, finished by its likelihood.

Where one sentence made the update, what it does not explain must be noise alone. What a draft leaves of the update
shows which token is missing and after which, and which of its own are wrong; of all edits the likeliest is taken,
until no row of the output layer stands out any more. That settles the first token too, which nothing predicts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradleak.attacks.evidence.likelihood import Batches, Likelihood
from gradleak.attacks.evidence.rows import clearly_longer
from gradleak.attacks.exact.contribution import sentence_gradient
from gradleak.attacks.film.attribution import Attribution
from gradleak.attacks.film.beam import LEAST_SHARE, BeamSettings, Grown, NGrams, search
from gradleak.attacks.film.readers import UpdateReader
from gradleak.attacks.film.sentence_bounds import end_tokens
from gradleak.core.budget import Budget, Stopped
from gradleak.models.text import TextModel
from gradleak.updates.update import Update

# Sentences of a search whose likelihoods are compared.
COMPARED = 6
# Edits that what is left of the update speaks for, of each kind; at most so many of them at one place.
EDITS, AT_A_PLACE = 6, 2
# Tokens that stand out of the rest and are tried as the first, or at the end.
MISSING = 3
# The layers whose gradients are compared, counted from the head: those below say the same again, and cost as much.
LAYERS = 3
# Of what a draft leaves, singular values down to this share of the largest count: a wrong token moves all states
# after it a little, which would else count as much as the token itself.
LEADING = 0.6
# What a draft explains at least if nearly all of it is right.
DRAFT = 0.3
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


Keep = Callable[[Single], None]


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
        keep: Keep,
    ) -> None:
        """`bag` are tokens that may be in the sentence, all of them if possible; `keep` gets the best so far."""
        self.model = model = attribution.model
        self.attribution, self.noise = attribution, attribution.noise
        self._settings, self._budget, self._show, self._keep = settings, budget, show, keep
        self._longest: Ids = ()  # of what was grown
        self._name = output_rows(model)
        self._rows = update.tensors[self._name].to(model.token_embedding)
        upper = tuple(f"{model.adapter.name_of(layer)}." for layer in model.adapter.layers[-LAYERS:])
        sent = {name: tensor for name, tensor in update.tensors.items() if name.startswith(upper)}
        self._update = replace(update, tensors=sent)
        self._likelihood = Likelihood(model, sent, self.noise, budget=budget)
        last = model.adapter.parts[-1]["ffn_out"].weight_name
        self._ending = Likelihood(model, sent, self.noise, parameters=[last], budget=budget)
        # What of these layers is not noise.
        squares = sum(float(tensor.double().square().sum()) for tensor in sent.values())
        self._signal = squares - self.noise**2 * sum(tensor.numel() for tensor in sent.values())
        # An expected end leaves hardly a trace, so ends are always tried.
        self._ends = [token for token in sorted(end_tokens(model)) if bool(model.text_tokens[token])]
        self._bag = torch.tensor(sorted({*bag, *self._ends}), device=model.device)

    def read(self, first: Sequence[int]) -> Single | None:
        """The likeliest sentence, grown from some first tokens, the likeliest first; None if nothing shows one."""
        best, value = self._drafted(first) if self._signal > 0 else ((), float("-inf"))
        if not best:  # the time may be over before anything could be compared
            return Single(self._longest, 0.0, False) if self._longest else None
        if self._budget.over:  # the draft is what there is
            return Single(best, self._explained(value), False)
        missing = self._missing(best)
        edits = deque([self._other_first, self._edited, self._other_end, self._regrown])
        if missing and best[0] not in missing:  # a wrong first token would stand out
            edits.rotate(-1)
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
                self._keep(Single(best, self._explained(value), not missing))
            else:
                edits.rotate(-1)
        return Single(best, self._explained(value), not missing)

    def _drafted(self, first: Sequence[int]) -> tuple[Ids, float]:
        """The likeliest sentence grown from one of these tokens, and its likelihood.

        What follows a wrong first token is mostly right, so the next is tried only if a draft explains little.
        """
        best: Ids = ()
        value = float("-inf")
        for token in first:
            try:
                draft, own = self._likeliest(self._grown(Grown((token,), (), ())))
            except Stopped:
                break
            if own > value:
                best, value = draft, own
                self._keep(Single(best, self._explained(value), False))
            if self._explained(value) > DRAFT or self._budget.over:
                break
        return best, value

    def _explained(self, value: float) -> float:
        """The share of what is not noise that a sentence with this likelihood explains, from 0 to 1."""
        return max(0.0, min(1.0, 2 * self.noise**2 * value / self._signal))

    def _grown(self, opening: Grown) -> list[Ids]:
        """The sentences of a search whose tokens explain most, each cut where it is likeliest."""
        seen = search(
            UpdateReader(self.attribution, self._bag),
            self._bag,
            [opening],
            self._settings,
            ends=self._ends.__contains__,
            forbidden=NGrams(self._settings.repeat),
            budget=self._budget,
            show=self._show,
        )
        found = explaining_most(seen, COMPARED)
        self._longest = max([self._longest, *found], key=len)
        return self._cut(found)

    def _cut(self, sentences: Sequence[Ids]) -> list[Ids]:
        """Sentences without what follows their likeliest ends."""
        if not sentences:
            return []
        lengths = self._ending.beginnings(self._batches(sentences)).argmax(dim=1) + 1
        return [tokens[:length] for tokens, length in zip(sentences, lengths.tolist(), strict=True)]

    def _batches(self, sentences: Sequence[Ids]) -> Batches:
        """Each as a batch of its own."""
        batch = self.model.pad(sentences)
        ids, mask = batch.ids[:, None], batch.mask[:, None]
        return Batches(ids, mask, ids)

    def _likeliest(self, sentences: Sequence[Ids]) -> tuple[Ids, float]:
        """The sentence with the highest likelihood, and that."""
        possible = [each for each in dict.fromkeys(sentences) if 1 < len(each) <= self._settings.length]
        if not possible:
            return (), float("-inf")
        values = self._likelihood.values(self._batches(possible))
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

    def _other_end(self, tokens: Ids, missing: Sequence[int]) -> list[Ids]:
        last = len(tokens)
        tried = dict.fromkeys([*self._tried(tokens, missing), *self._ends])
        return [tokens[:-1], *((*tokens[:kept], token) for token in tried for kept in (last - 1, last))]

    def _edited(self, tokens: Ids, missing: Sequence[int]) -> list[Ids]:
        """With the tokens that what is left speaks for, in place of others or before them, and without the wrong."""
        left = self._left(tokens)
        if left is None:
            return []
        others = [
            edited
            for place, token in strongest(left, EDITS, AT_A_PLACE)
            for edited in (
                (*tokens[: place + 1], int(self._bag[token]), *tokens[place + 1 :]),
                (*tokens[: place + 1], int(self._bag[token]), *tokens[place + 2 :]),
            )
        ]
        wrong = (left[:-1].max(dim=1).values.argsort(descending=True)[:EDITS] + 1).tolist()
        return [*others, *((*tokens[:place], *tokens[place + 1 :]) for place in wrong)]

    def _regrown(self, tokens: Ids, missing: Sequence[int]) -> list[Ids]:
        """Grown anew from where what is left speaks most for another token."""
        left = self._left(tokens)
        if left is None:
            return []
        ((place, token),) = strongest(left, 1, 1)
        kept = (*tokens[: place + 1], int(self._bag[token]))
        return self._grown(Grown(kept, (0.0,) * (len(kept) - 1), (1.0,) * (len(kept) - 1)))

    def _left(self, tokens: Ids) -> Tensor | None:
        """How much more of what a sentence leaves of the update each token of the bag explains than its own does.

        After each of its tokens, (tokens, bag). None if nothing stands out of the noise.
        """
        sent = self._update.tensors
        own = sentence_gradient(self.model, list(tokens), None, list(sent))
        rest = {name: tensor - own[name].to(tensor) for name, tensor in sent.items() if name in own}
        attribution = Attribution(self.model, replace(self._update, tensors=rest), self.noise, LAYERS, LEADING)
        if not attribution.unit:
            return None
        (shares,) = attribution.shares([tokens])
        return attribution.following(tokens, self._bag) - torch.nn.functional.pad(shares, (0, 1))[:, None]


def explaining_most(seen: Sequence[Grown], count: int) -> list[Ids]:
    """Of the sentences of a search, at their longest, those some beginning of which explains most.

    Of sentences that differ only after that beginning one is given.
    """
    continued = {sentence.tokens[:-1] for sentence in seen}
    peaks: dict[Ids, tuple[float, Ids]] = {}
    for sentence in seen:
        if sentence.tokens in continued:
            continue
        given = len(sentence.tokens) - len(sentence.shares)
        surplus = torch.tensor(sentence.shares).clamp_max(1.0).sub(LEAST_SHARE).cumsum(dim=0)
        most = int(surplus.argmax())
        beginning, value = sentence.tokens[: given + most + 1], float(surplus[most])
        if value > peaks.get(beginning, (float("-inf"), ()))[0] or len(sentence.tokens) > len(peaks[beginning][1]):
            peaks[beginning] = value, sentence.tokens
    ranked = sorted(peaks.values(), key=lambda pair: pair[0], reverse=True)
    return [tokens for _, tokens in ranked[:count]]


def strongest(values: Tensor, count: int, of_a_row: int) -> list[tuple[int, int]]:
    """The places of the largest values, largest first, at most some of each row.

    >>> strongest(torch.tensor([[5.0, 4.0, 3.0], [0.0, 2.0, 1.0]]), 3, 2)
    [(0, 0), (0, 1), (1, 1)]
    """
    best = values.topk(min(of_a_row, values.shape[1]), dim=1)
    order = best.values.flatten().argsort(descending=True)[:count].tolist()
    rows, columns = best.indices.shape[1], best.indices.flatten()
    return [(place // rows, int(columns[place])) for place in order]


def output_rows(model: TextModel) -> str:
    """The name of the output layer's matrix, a row per token."""
    adapter = model.adapter
    return adapter.parameter_of(adapter.token_embedding if adapter.tied else adapter.output_layer)
