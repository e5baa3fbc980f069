"""Sentences of a decoder, grown token by token, each checked against the spans.

A decoder's state depends only on what came before, so a sentence can be grown from its first token: a token is kept
if its state after the first attention lies in the span of that layer's feed-forward gradient, and its state after the
whole layer in the span of the next one's, and so on where spans are nearly full (`places.py`). A prefix that no token
continues is a whole sentence. Any deeper layer serves as well, at the price of running up to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.attacks.spans.candidates import Membership, fitting
from gradleak.attacks.spans.certify import Place
from gradleak.attacks.spans.probe import Probe
from gradleak.attacks.spans.spans import Span
from gradleak.core.budget import Budget, Stopped
from gradleak.models.adapter import Part
from gradleak.models.masks import Sees
from gradleak.models.text import TextModel

# Tokens of all prefixes and their candidates that go through the first layer at once.
CHUNK = 8192
# Without learned positions a token after copies of itself looks like itself, so any run of it fits. Sentences that
# begin with a run this long are still found.
LONGEST_RUN = 3
# Elsewhere a token after many copies of itself comes to look like one after a copy more, within rounding. No text is
# taken to have so many.
ENDLESS = 16
# More prefixes than this at once means that the spans no longer separate right from wrong.
MOST_PREFIXES = 4096
# Candidates that stand side by side after a prefix: each makes the attention of all larger.
SIDE_BY_SIDE = 1024
# Tokens of prefixes and candidates up to which all places are looked at in one pass: a second costs more than these.
FEW = 96
# Where any token may stand anywhere, so many that the model finds likeliest are tried first.
LIKELIEST = 1024


@dataclass(frozen=True)
class Prefix:
    """Tokens from a start position on; padding on the left moves the start where positions are learned."""

    start: int
    tokens: tuple[int, ...]

    @property
    def run(self) -> bool:
        """Whether it is the same token over and over."""
        return len(self.tokens) > 1 and len(set(self.tokens)) == 1

    @property
    def endless(self) -> bool:
        """Whether it ends in the same token over and over, and may go on so for ever."""
        return len(self.tokens) >= ENDLESS and len(set(self.tokens[-ENDLESS:])) == 1

    def states(self, learned: bool) -> list[tuple[int, tuple[int, ...]]]:
        """What the state at each token depends on: the start and the tokens so far; `learned` are positions.

        Without learned positions a token after copies of itself has the state of the token alone.

        >>> Prefix(0, (7, 7, 8)).states(learned=False)
        [(0, (7,)), (0, (7,)), (0, (7, 7, 8))]
        """
        prefixes = [Prefix(self.start, self.tokens[: n + 1]) for n in range(len(self.tokens))]
        return [(p.start, p.tokens[:1] if p.run and not learned else p.tokens) for p in prefixes]


@dataclass(frozen=True)
class Spans:
    """What the first layer sees, if known, and the places where tokens are mixed, in the order they run.

    All candidates are tried at the first of these, those that fit there at the others.
    """

    inputs: Span | None
    mixed: Sequence[Place]


class Growth:
    """Grows all sentences of a batch side by side."""

    def __init__(self, model: TextModel, spans: Spans, positions: range) -> None:
        """`positions` are those that tokens may have."""
        self.model = model
        self.positions = positions
        self.spans = spans
        self.tests = [Membership(place.span) for place in spans.mixed]
        self.learned = model.adapter.positions is not None
        self.vocabulary = torch.arange(model.vocabulary_size, device=model.device)
        self.bag: dict[int, None] = {}
        self.overflow = False
        self.hurried = False
        self._everywhere: Tensor | None = None

    def run(self, budget: Budget, show: Callable[[str], None], thorough: bool = False) -> list[Prefix]:
        """All prefixes that cannot be continued: the sentences, as far as they leave a trace.

        Where the first layer shows nothing, a prefix that likely tokens continue is not tried with all others unless
        `thorough`; `hurried` is then set, as some sentence may have been missed.
        """
        self._hurry = not thorough and self.spans.inputs is None and self.model.goal.autoregressive
        self.hurried = False
        alive: list[Prefix] = []
        whole: list[Prefix] = []
        for position in self.positions:
            if self.overflow or budget.tick():
                break
            try:
                bag = self.candidates(position)
                grown, ended = self._extend(alive, bag, position)
            except Stopped:  # in the middle of a position: the prefixes before it stand
                break
            seen = (p.tokens[-1] for p in grown) if self.spans.inputs is None else bag.tolist()
            self.bag.update(dict.fromkeys(seen))
            whole += ended
            alive = grown
            if not alive:
                break
            best = max(alive, key=lambda prefix: len(prefix.tokens))
            show(self.model.decode(best.tokens))
            self.overflow = self.overflow or len(alive) > MOST_PREFIXES
        return self._without_runs(whole + alive)

    def _without_runs(self, prefixes: list[Prefix]) -> list[Prefix]:
        """Where a run looks like its token alone, the token is no sentence if some prefix begins with the run."""
        begun = set() if self.learned else {p.tokens[0] for p in prefixes if p.tokens[1:2] == p.tokens[:1]}
        return [p for p in prefixes if len(p.tokens) > 1 or p.tokens[0] not in begun]

    def candidates(self, position: int) -> Tensor:
        """The tokens that fit the first layer's span at this position; all of them if that was not sent."""
        if self.spans.inputs is None:
            return self.vocabulary
        if self.learned:
            fits = fitting(self.model, self.spans.inputs, self.vocabulary, 1, position)
            return self.vocabulary[fits[:, 0]]
        if self._everywhere is None:
            self._everywhere = self.vocabulary[fitting(self.model, self.spans.inputs, self.vocabulary, 1)[:, 0]]
        return self._everywhere

    def _extend(self, alive: list[Prefix], bag: Tensor, position: int) -> tuple[list[Prefix], list[Prefix]]:
        """Every prefix with every token that fits after it; those that nothing fits after have ended."""
        if not len(bag):
            return [], alive
        grown: list[Prefix] = []
        # Sentences begin at the first position, or further on if they are padded on the left, which is not looked for
        # where any token may stand anywhere.
        if position == self.positions.start or (self.learned and self.spans.inputs is not None):
            grown += self._fitting([Prefix(position, ())], bag)
        ended = []
        per_call = max(1, CHUNK // (min(len(bag), SIDE_BY_SIDE) + position + 1))
        for start in {prefix.start for prefix in alive}:
            here = [prefix for prefix in alive if prefix.start == start]
            for first in range(0, len(here), per_call):
                part = here[first : first + per_call]
                longer = [
                    p
                    for p in self._continued(part, bag)
                    if self.learned or not (p.endless or (p.run and len(p.tokens) > LONGEST_RUN))
                ]
                grown += longer
                continued = {p.tokens[:-1] for p in longer if self.learned or not p.run}
                ended += [p for p in part if p.tokens not in continued and (self.learned or not p.run)]
        return grown, ended

    def _continued(self, prefixes: list[Prefix], bag: Tensor) -> list[Prefix]:
        """The prefixes with every token that fits; in a hurry likely tokens first, others only where none fits."""
        if not self._hurry or len(bag) <= LIKELIEST:
            return self._fitting(prefixes, bag)
        grown: list[Prefix] = []
        for prefix in prefixes:
            likely = self._likely(prefix)
            longer = self._fitting([prefix], likely)
            if longer:
                self.hurried = True
            else:
                rest = torch.ones(len(self.vocabulary), dtype=torch.bool, device=bag.device)
                rest[likely] = False
                longer = self._fitting([prefix], bag[rest[bag]])
            grown += longer
        return grown

    def _likely(self, prefix: Prefix) -> Tensor:
        ids = torch.tensor([prefix.tokens], device=self.model.device)
        with torch.no_grad():
            logits = self.model.logits(
                ids=ids, mask=torch.ones_like(ids), positions=_places(ids, prefix.start) if self.learned else None
            )
        return logits[0, -1].topk(LIKELIEST).indices.sort().values

    def _fitting(self, prefixes: list[Prefix], bag: Tensor) -> list[Prefix]:
        """The prefixes of the same start and length, each with another token of the bag where that fits."""
        few = len(prefixes) * (len(prefixes[0].tokens) + len(bag)) <= FEW
        at_once = len(self.tests) if few else 1
        tests, others = self.tests[:at_once], self.tests[at_once:]
        mixed = [place.part for place in self.spans.mixed[:at_once]]
        parts = []
        for some in bag.split(SIDE_BY_SIDE):
            states = self._states_after(prefixes, some, mixed)
            parts.append(torch.stack([test(seen) for test, seen in zip(tests, states, strict=True)]).all(dim=0))
        pairs = torch.cat(parts, dim=1).nonzero().tolist()
        longer = [Prefix(prefixes[i].start, (*prefixes[i].tokens, int(bag[j]))) for i, j in pairs]
        if not others or not longer:
            return longer
        kept: list[Prefix] = []
        probe = Probe(self.model, [place.part for place in self.spans.mixed[at_once:]])
        for part in _split(longer, max(1, CHUNK // len(longer[0].tokens))):
            ids = torch.tensor([prefix.tokens for prefix in part], device=self.model.device)
            with torch.no_grad():
                seen = probe(input_ids=ids, mask=torch.ones_like(ids), position_ids=_places(ids, part[0].start))
            fits = torch.stack([test(states[:, -1]) for test, states in zip(others, seen, strict=True)]).all(dim=0)
            kept += [prefix for prefix, fit in zip(part, fits.tolist(), strict=True) if fit]
        return kept

    def _states_after(self, prefixes: list[Prefix], bag: Tensor, parts: Sequence[Part]) -> list[Tensor]:
        """What parts see of each token after each prefix, (prefixes, tokens, width) each.

        All tokens stand side by side after the same prefix, at the same position, and see it and themselves only.
        """
        length, start = len(prefixes[0].tokens), prefixes[0].start
        before = torch.tensor([prefix.tokens for prefix in prefixes], dtype=torch.long, device=self.model.device)
        ids = torch.cat([before.view(len(prefixes), length), bag.expand(len(prefixes), -1)], dim=1)
        total = ids.shape[1]
        positions = torch.arange(total, device=ids.device).clamp_max(length)
        sees = torch.ones(total, total, dtype=torch.bool, device=ids.device).tril()
        sees[length:, length:] = torch.eye(total - length, dtype=torch.bool, device=ids.device)
        probe = Probe(self.model, parts)
        with torch.no_grad():
            seen = probe(input_ids=ids, mask=Sees(sees, positions), position_ids=(start + positions)[None])
        return [states[:, length:] for states in seen]


def _places(ids: Tensor, start: int) -> Tensor:
    return torch.arange(start, start + ids.shape[1], device=ids.device)[None]


def _split(items: list[Prefix], size: int) -> list[list[Prefix]]:
    return [items[first : first + size] for first in range(0, len(items), size)]
