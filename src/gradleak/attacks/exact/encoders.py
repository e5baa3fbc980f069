"""Exact recovery from an encoder's update: unmix, search, certify, remove, and again until nothing is left."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import torch
from torch import Tensor

from gradleak.attacks.evidence.lengths import shortest_sentence
from gradleak.attacks.evidence.predicted import predicted_tokens
from gradleak.attacks.exact.anchored import AnchoredSearch, can_anchor, explains_rows
from gradleak.attacks.exact.contribution import Evidence, find_contribution, without
from gradleak.attacks.exact.flips import PROMISING, Energy, Frames, best_flips, descend
from gradleak.attacks.exact.limits import not_in_update, rank_hidden
from gradleak.attacks.exact.recovery import Outcome, Recovered
from gradleak.attacks.reasons import Reason
from gradleak.attacks.spans.candidates import Choices, first_inputs, fitting
from gradleak.attacks.spans.certify import Certifier, attention_parts, carried, input_span, joint_span, mixed_layer
from gradleak.attacks.spans.spans import Span
from gradleak.attacks.spans.unmix import embedding_rows, read_only, unmix
from gradleak.core.budget import Budget, Stopped
from gradleak.models.float64 import rows_stand_alone
from gradleak.models.text import TextModel
from gradleak.updates.update import Update

# Starts for every possible length in the first round; twice as many after a round that found nothing.
STARTS, MOST_STARTS = 6, 192
# Sentences of a round that are checked exactly; more than that look promising only where the span fills the space.
MOST_CHECKS = 256
# A token's share at a position below which it is not tried there; less and less while nothing is found. Tokens that
# may occur several times are then tried, with this share at least, wherever they fit.
LEAST_SHARE = 0.02
# A token that occurs once has nearly all of its share at one position. Other shares are rough: those rows are sums.
ONCE = 0.9
# What rounding leaves of a gradient row that should be zero, against the largest row and against what it was.
ROW_NOISE, OWN_NOISE = 1e-6, 1e-5
# Shares of the mean that add up to this leave room for no further sentence, in batches of up to 500.
WHOLE = 0.998
# That holds if the update is the mean of the batch's gradients. A multiple of the mean has more than this left.
SPENT = 0.1
# With more of the dimensions taken than this, sentences are looked for around single tokens first.
CROWDED = 0.5
# Rows of the token embedding are kept apart if fewer than this share of them moved.
MOST_ROWS = 0.5
# Rounds around all of these in vain until they are given up, and sentences after which the rest is solved anew.
ANCHORED_ROUNDS, SOLVED_ANEW = 4, 8
# Positions looked at when the update does not show how long sentences are.
BLOCK = 24


def recover_encoder(
    model: TextModel,
    update: Update,
    generator: torch.Generator,
    budget: Budget,
    show: Callable[[str], None],
    kind: type[EncoderRecovery] | None = None,
) -> Outcome:
    """All sentences of the update that can be found and proved; `kind` is how they are searched for."""
    missing = not_in_update(update, [attention_parts(model, 0), mixed_layer(model, update.tensors)[1]])
    if missing:
        return Outcome(reasons=[missing])
    rounds = (kind or EncoderRecovery)(model, update, generator)
    with suppress(Stopped):  # in the middle of a round: what was recovered before it stands
        rounds.run(budget, show)
    bag = {token: 1.0 for sentence in rounds.recovered for token in sentence.tokens}
    reasons = [] if rounds.complete else rounds.reasons
    return Outcome(rounds.recovered, rounds.complete, {**rounds.bag, **bag}, reasons)


class EncoderRecovery:
    """The rounds of search on an update, and the sentences recovered so far.

    `enough` is the energy at which a descent ends, `promising` that up to which a sentence is checked.
    """

    enough = promising = PROMISING
    once = ONCE
    first_starts, most_starts = STARTS, MOST_STARTS

    def __init__(self, model: TextModel, update: Update, generator: torch.Generator) -> None:
        self.model = model
        self.size = update.known.size
        self.generator = generator
        adapter = model.adapter
        self.update = update
        self.first = attention_parts(model, 0)
        self.layer, self.mixed = mixed_layer(model, update.tensors)
        self.token_table = adapter.parameter_of(adapter.token_embedding)
        # Where it is the output layer too, all of its rows move, and none shows by that which tokens were read.
        self.tied = model.goal.predicts_tokens and adapter.tied
        self.evidence = Evidence(self.size, predicted_tokens(update, model))
        self.position_table = "" if adapter.positions is None else adapter.parameter_of(adapter.positions)
        wanted = {name for part in (*self.first, *self.mixed) for name in part.tensor_names}
        wanted |= {self.token_table, self.position_table, adapter.parts[0]["key"].weight_name}
        # Of the token embedding only what moved: all of it in float64 would take more than the model.
        self.read = self._read_rows()
        self.left = {
            name: (update.tensors[name][self.read] if name == self.token_table else update.tensors[name]).double()
            for name in update.tensors
            if name in wanted
        }
        self.original = dict(self.left)
        self._exact: TextModel | None = None
        self.recovered: list[Recovered] = []
        self.bag: dict[int, float] = {}
        self.seen: tuple[Tensor, int] | None = None
        self.reasons: list[Reason] = []
        self._prepare()

    def _prepare(self) -> None:
        """What the untouched update shows."""
        self.certifier = Certifier(self.model, self.update)
        mixed = self.certifier.spans[0].span if self.certifier.spans else None
        self.before = (input_span(self.model, self.left), mixed)

    def run(self, budget: Budget, show: Callable[[str], None]) -> None:
        """Search until every sentence is found, the budget is spent, or many starts find nothing."""
        starts, narrow, failures = self.first_starts, False, 0
        while not budget.over and not self.complete:
            spans = self._spans(narrow)
            crowded = spans is None or spans[1].rank > CROWDED * spans[1].width
            if (crowded or failures) and self._search_anchored(budget, show):
                failures = 0
                continue
            if spans is None:
                break
            if self._round(*spans, starts, budget):
                show(self.model.decode(self.recovered[-1].tokens))
                starts, failures = max(self.first_starts, starts // 2), 0
                continue
            failures += 1
            if self.recovered and failures % 2:  # the other end of the spectrum first, then more starts
                narrow = not narrow
            else:
                starts *= 2
            if starts > self.most_starts:
                self.reasons.append(Reason(kind="starts-spent", numbers={"starts": self.most_starts}))
                break

    @property
    def count(self) -> int:
        """Sentences accounted for, repeated sentences as often as they occur."""
        if self.size is None or not self.model.goal.one_per_text:  # shares are of tokens then
            return len(self.recovered)
        return sum(max(1, round(self.size * sentence.share)) if sentence.share else 1 for sentence in self.recovered)

    @property
    def complete(self) -> bool:
        """Whether all sentences are recovered: as many as known, all of the mean, or until nothing is left."""
        if not self.recovered or (self.size is not None and len(self.recovered) >= self.size):
            return bool(self.recovered)
        left, before = (self.mixed[0].carrier(tensors) for tensors in (self.left, self.original))
        if left is None or before is None:
            return left is None
        rest = float(left.matrix.norm() / before.matrix.norm())
        shares = [sentence.share for sentence in self.recovered if sentence.share is not None]
        spent = sum(shares) > WHOLE or (self.size is not None and self.count >= self.size)
        # A sentence without a share was not removed, so then what is left says nothing.
        return rest < OWN_NOISE or (spent and (rest < SPENT or len(shares) < len(self.recovered)))

    # --- a round ----------------------------------------------------------------------------------

    def _spans(self, narrow: bool) -> tuple[Span, Span] | None:
        """What the first layer still sees, and what is left after its attention."""
        if self.before[0] is None or self.before[1] is None:
            hidden = self.mixed if self.before[1] is None else self.first
            self.reasons.append(rank_hidden(self.update, self.model, hidden))
            return None
        if not self.recovered:
            return self.before[0], self.before[1]
        tokens = input_span(self.model, self.left, self.before[0], narrow)
        mixed = joint_span(self.left, self.mixed, self.before[1], narrow)
        if tokens is None or mixed is None:
            self.reasons.append(Reason(kind="rest-drowned"))
            return None
        return tokens, mixed

    def _round(self, inputs: Span, mixed: Span, starts: int, budget: Budget) -> bool:
        choices, lengths = self._choices(inputs, starts)
        return bool(lengths) and self._search(choices, lengths, mixed, starts, budget)

    def _search(
        self, choices: Choices, lengths: list[int], mixed: Span, starts: int, budget: Budget, ordered: bool = False
    ) -> bool:
        """Whether a sentence of one of these lengths was found, from so many starts for each.

        Choices that are `ordered` are those of one sentence, in the order in which they are likely to stand.
        """
        rows = torch.tensor(lengths, device=self.model.device).repeat_interleave(starts)
        frames = Frames(self.model, choices, rows)
        picks = choices.draw(len(rows), self.generator)
        if ordered:
            begun = torch.arange(0, len(rows), starts, device=rows.device)
            picks[begun] = frames.in_order(begun)
        energy = Energy(self.model, mixed, self.mixed[0])
        ids, energies = descend(energy, frames, picks, budget, self.enough, self._tries, first=ordered)
        known = {tuple(r.tokens) for r in self.recovered}
        promising = dict.fromkeys(
            tuple(ids[row][frames.mask[row]].tolist())
            for row in energies.argsort()[:MOST_CHECKS].tolist()
            if energies[row] < self.promising
        )
        accepted = [self._accept(list(tokens)) for tokens in promising if tokens not in known]
        return any(accepted)

    def _tries(self, energy: Energy, frames: Frames, picks: Tensor, rows: Tensor) -> Tensor:
        """What is tried in a step of the search."""
        return best_flips(energy, frames, picks, rows)

    def _accept(self, tokens: list[int]) -> bool:
        certificate = self.certifier.check(tokens)
        if not certificate.holds:
            return False
        # As long as nothing was taken out, the span is the one from before.
        span = joint_span(self.left, self.mixed, self.before[1]) if self.recovered else self.before[1]
        if span is None:
            return False
        double = self._double()
        part = double.adapter.parts[self.layer][self.mixed[0].role]
        own = find_contribution(double, self.left, span, part, tokens, evidence=self.evidence)
        label, share = (None, None) if own is None else (own.label, own.share)
        written = self.model.goal.as_written(tokens, label)
        # What a client hid or replaced is proved only by what was predicted there.
        self.recovered.append(Recovered(tokens, certificate, label, share, written is not None, written=written))
        if own is not None:
            self.left = without(self.left, own)
        return True

    def _double(self) -> TextModel:
        """The model in float64: what is removed must be more exact than what is left."""
        if self._exact is None:
            few = len(self.read) < self.model.vocabulary_size
            self._exact = self.model.to_float64(self._differentiated, self.read if few else None)
        return self._exact

    @property
    def _differentiated(self) -> set[str]:
        """The parameters whose gradients are asked for, of single sentences."""
        return set(self.left)

    def _search_anchored(self, budget: Budget, show: Callable[[str], None]) -> bool:
        """Look for sentences around tokens that occur once; whether some were found."""
        if self.tied or not self._anchoring:
            return False
        tried, rounds, before = Counter[int](), 0, len(self.recovered)
        while rounds < ANCHORED_ROUNDS and not budget.over and not self.complete:
            found = self._anchored_round(tried, rounds > 0, budget, show)
            rounds = 0 if found else rounds + 1
        return len(self.recovered) > before

    def _anchored_round(self, tried: Counter[int], shaken: bool, budget: Budget, show: Callable[[str], None]) -> bool:
        """Whether some anchors led to sentences, which are removed; after a few of them the rest is solved anew."""
        tokens, length = self._tokens(), self._longest()
        if length is None or len(tokens) + length >= self.model.width:
            return False
        rows = self.left[self.token_table][self._places(tokens)]
        search = AnchoredSearch(self.model, self.left, tokens, rows, length, self.generator)
        before, read = len(self.recovered), set[int]()
        for number, position, token in search.anchors(tried) if search.usable else ():
            if budget.over or self.complete or len(self.recovered) >= before + SOLVED_ANEW:
                break
            if token in read:
                continue
            tried[token] += 1
            for sentence in search.around(number, position, read, shaken, budget):
                if self._accept_by_rows(sentence, token):
                    read |= set(sentence)
                    show(self.model.decode(sentence))
        return len(self.recovered) > before

    def _accept_by_rows(self, tokens: list[int], anchor: int) -> bool:
        proof = explains_rows(self._double(), self.left, tokens, int(self._places(torch.tensor(anchor))))
        if proof is None:
            return False
        own, certificate = proof
        self.recovered.append(Recovered(tokens, certificate, own.label, own.share))
        self.left = without(self.left, own)
        return True

    @functools.cached_property
    def _anchoring(self) -> bool:
        return can_anchor(self.model, self.original)

    # --- which tokens, where ----------------------------------------------------------------------

    def _choices(self, span: Span, starts: int) -> tuple[Choices, list[int]]:
        """The tokens each position may hold, fewer in a first round of few starts, and possible lengths."""
        tokens, fits = self._fits(span)
        shares = unmix(*self._embedding_rows(span, tokens, fits), fits)
        weights = torch.where(shares > LEAST_SHARE * (STARTS / starts) ** 2, shares, 0.0) * fits
        if starts > STARTS:
            repeated = shares.amax(dim=1, keepdim=True) < self.once
            weights = torch.where(repeated & fits, weights.clamp_min(LEAST_SHARE), weights)
        inner = ~torch.isin(tokens, torch.tensor(self._special, device=tokens.device))
        kept = inner & (weights > 0).any(dim=1)
        lengths = self._lengths(tokens, weights) if bool(kept.any()) else []
        self.bag = {int(token): float(weights[i].max()) for i, token in enumerate(tokens) if kept[i]}
        return Choices.of(self.model, tokens[kept], weights[kept]), lengths

    @property
    def _special(self) -> list[int]:
        return [*self.model.prefix, *self.model.suffix, self.model.tokenizer.pad_token_id or 0]

    def _fits(self, span: Span) -> tuple[Tensor, Tensor]:
        """The tokens that fit the span somewhere, and at which positions they do: (tokens, positions)."""
        tokens, length = self._tokens(), self._longest()
        fits = fitting(self.model, span, tokens, length or BLOCK)
        while length is None and bool(fits[:, -1].any()) and fits.shape[1] < self.model.max_length:
            fits = fitting(self.model, span, tokens, min(2 * fits.shape[1], self.model.max_length))
        some = fits.any(dim=1)
        if length is None:
            used = fits.any(dim=0).nonzero()
            fits = fits[:, : int(used.max()) + 1 if len(used) else 1]
        self.seen = tokens[some], fits.shape[1]
        return tokens[some], fits[some]

    def _embedding_rows(self, span: Span, tokens: Tensor, fits: Tensor) -> tuple[Tensor, Tensor]:
        """The embeddings' gradients at the tokens and at the positions: as sent, else from the first layer."""
        if self.token_table in self.left and self.position_table in self.left:
            first, table = self.model.adapter.family.first_position, self.left[self.token_table]
            places = self.left[self.position_table][first : first + fits.shape[1]]
            return (table[self._places(tokens)], places) if not self.tied else read_only(table, tokens, places)
        matrices, _ = carried(self.left, self.first)
        return embedding_rows(span, matrices, first_inputs(self.model, tokens, fits.shape[1]), fits)

    def _tokens(self) -> Tensor:
        """The tokens of the batch where the token embedding shows them, else all, or those that fitted before."""
        if self.token_table in self.left and not self.tied:
            return self.read[self._rows(self.token_table)]
        if self.seen is not None:  # what is left of an update can hold no others
            return self.seen[0]
        return torch.arange(self.model.vocabulary_size, device=self.model.device)

    def _read_rows(self) -> Tensor:
        """The tokens whose rows of the token embedding are kept: those that moved, or all where most did."""
        every = torch.arange(self.model.vocabulary_size, device=self.model.device)
        table = self.update.tensors.get(self.token_table)
        if table is None or self.tied or not rows_stand_alone(self.model):
            return every
        moved = (table != 0).any(dim=1).nonzero()[:, 0]
        return moved if len(moved) < MOST_ROWS * len(every) else every

    def _places(self, tokens: Tensor) -> Tensor:
        """Where the rows of these tokens are among those that are kept."""
        return torch.searchsorted(self.read, tokens.to(self.read))

    def _longest(self) -> int | None:
        if self.position_table not in self.left:
            return None if self.seen is None else self.seen[1]
        used = self._rows(self.position_table)
        return int(used.max()) + 1 - self.model.adapter.family.first_position if len(used) else None

    def _rows(self, name: str) -> Tensor:
        """The rows of an embedding that still have a gradient."""
        now, before = self.left[name].norm(dim=1), self.original[name].norm(dim=1)
        return (now > ROW_NOISE * before.max() + OWN_NOISE * before).nonzero()[:, 0]

    def _lengths(self, tokens: Tensor, weights: Tensor) -> list[int]:
        """Where a sentence can end: positions that can hold the last special token, with others before it."""
        shortest = shortest_sentence(self.model)
        longest = weights.shape[1]
        if not self.model.suffix:
            return list(range(shortest, longest + 1))
        last = (tokens == self.model.suffix[-1]).nonzero()[:, 0]
        ends = (weights[last] > 0).any(dim=0).nonzero()[:, 0].tolist() if len(last) else []
        return [end + 1 for end in ends if end + 1 >= shortest]
