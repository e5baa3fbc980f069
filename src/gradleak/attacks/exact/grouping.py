"""Which inputs of a first layer stood in one sentence: those whose keys explain one another's queries.

The gradient at a token's query is a combination of differences between the keys of its own sentence, head by head:
scores only count against one another, and only within the sentence. Dropout of the attention changes the numbers of
this combination and nothing else. So a sentence is a set of inputs, one for each position, in which the gradient of
every query lies in the span of these differences.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from gradleak.attacks.spans.certify import STRICT, Certificate
from gradleak.attacks.spans.masked import MaskedInput
from gradleak.core.budget import Budget
from gradleak.models.text import TextModel

# The share of queries' gradients that may lie outside: rounding leaves 1e-9 of true sentences.
EXPLAINED = 1e-6
# Starts for every length in a round that follows another in vain, and exchanges until a start is given up.
STARTS, MORE, MOST_STARTS, STEPS = 8, 4, 128, 60
# Sentences whose energies are computed at a time.
CHUNK = 512

Columns = dict[int, list[int]]


class Grouping:
    """Inputs that may stand in one sentence, by their numbers, and how well their keys explain their queries."""

    def __init__(self, model: TextModel, inputs: Sequence[MaskedInput], query_gradient: Tensor) -> None:
        """`query_gradient` is that of the first layer's query matrix, (outputs, inputs)."""
        self.model = model
        states = torch.stack([each.state for each in inputs])
        key, heads = model.adapter.parts[0]["key"], int(model.module.config.num_attention_heads)
        # What is added to all keys, and the factor of dropout, make no difference to the span of their differences.
        self.keys = (states @ key.of(key.module.get_parameter("weight").detach()).to(states).T).unflatten(
            1, (heads, -1)
        )
        slopes = (query_gradient.to(states) @ torch.linalg.pinv(states)).T
        self.slopes = (slopes / slopes.norm(dim=1, keepdim=True).clamp_min(1e-300)).unflatten(1, (heads, -1))
        self.tokens = [each.token for each in inputs]
        self.columns: Columns = {}
        for number, each in enumerate(inputs):
            self.columns.setdefault(each.position, []).append(number)
        self.alone = all(len(column) == 1 for column in self.columns.values())

    def certificate(self, length: int, energy: float, complete: bool) -> Certificate:
        """What a sentence's energy proves where all inputs of the batch are known.

        The keys of more tokens than a head has dimensions explain everything and prove nothing. A single sentence
        needs no proof of this kind, as nothing else was read.
        """
        width = self.keys.shape[2]
        chance = 1.0 if self.alone else max(0, width - length + 1) / width
        return Certificate(energy, EXPLAINED, complete and STRICT * chance > EXPLAINED)

    def sentences(self, generator: torch.Generator, budget: Budget) -> Iterator[tuple[list[int], float]]:
        """The inputs of each sentence in order, with its energy; when no more are explained, the likeliest."""
        left, starts = dict(self.columns), STARTS
        while lengths := _lengths(left, len(self.model.prefix)):
            found = self._explained(left, lengths, starts, generator, budget)
            good = [each for each in found if each[1] <= EXPLAINED]
            if not good and starts * MORE <= MOST_STARTS and not budget.over:
                starts *= MORE
                continue
            if not found:
                return
            for numbers, energy in good or found[:1]:
                if all(number in left[position] for position, number in enumerate(numbers)):
                    yield numbers, energy
                    for position, number in enumerate(numbers):
                        left[position] = [other for other in left[position] if other != number]
            starts = STARTS

    def energies(self, picks: Tensor) -> Tensor:
        """The mean share of the queries' gradients that the keys of (sentences, positions) do not explain."""
        return torch.cat([self._energies(portion) for portion in picks.split(CHUNK)])

    def _energies(self, picks: Tensor) -> Tensor:
        keys, slopes = self.keys[picks].transpose(1, 2), self.slopes[picks].transpose(1, 2)
        if picks.shape[1] > keys.shape[3]:
            return slopes.new_zeros(len(picks))
        basis = torch.linalg.qr((keys[:, :, 1:] - keys[:, :, :1]).mT).Q
        return (slopes - (slopes @ basis) @ basis.mT).square().sum(dim=(1, 3)).mean(dim=1)

    def _explained(
        self, left: Columns, lengths: Sequence[int], starts: int, generator: torch.Generator, budget: Budget
    ) -> list[tuple[list[int], float]]:
        """The sentences of these lengths that starts led to, the best first."""
        found: dict[tuple[int, ...], float] = {}
        for length in dict.fromkeys(lengths):
            columns = [self._choices(left, position, length) for position in range(length)]
            if all(columns):
                picks, energies = self._descend(columns, starts, generator, budget)
                found.update(zip(map(tuple, picks.tolist()), energies.tolist(), strict=True))
        return [([*numbers], energy) for numbers, energy in sorted(found.items(), key=lambda each: each[1])]

    def _choices(self, left: Columns, position: int, length: int) -> list[int]:
        """The inputs that may stand there in a sentence of this length: its end, or anything else."""
        column, ends = left.get(position, []), self.model.suffix[-1:]
        if not ends or position < len(self.model.prefix):
            return column
        return [number for number in column if (self.tokens[number] == ends[0]) == (position == length - 1)]

    def _descend(
        self, columns: Sequence[Sequence[int]], starts: int, generator: torch.Generator, budget: Budget
    ) -> tuple[Tensor, Tensor]:
        """Exchange one input after another, the best first, until none helps."""
        most = max(map(len, columns))
        table = torch.tensor([[column[n % len(column)] for n in range(most)] for column in columns])
        drawn = torch.randint(10**6, (starts, len(columns)), generator=generator)
        picks = table.gather(1, (drawn % torch.tensor([len(column) for column in columns])).T).T
        picks = picks.unique(dim=0).to(self.keys.device)
        energies, active = self.energies(picks), torch.arange(len(picks))
        table = table.to(self.keys.device)
        for _ in range(STEPS):
            active = active[(energies[active] > EXPLAINED).cpu()]
            if not len(active) or budget.over or bool((energies <= EXPLAINED).any()):
                break
            tried = picks[active][:, None, None].repeat(1, len(columns), most, 1)
            places = torch.arange(len(columns))
            tried[:, places, :, places] = table[:, None].expand(-1, len(active), -1)
            values = self.energies(tried.flatten(0, 2)).view(len(active), -1)
            best = values.min(dim=1)
            better = best.values < energies[active]
            rows = active[better.cpu()]
            picks[rows] = tried.flatten(1, 2)[better, best.indices[better]]
            energies[rows] = best.values[better]
            active = rows
        return picks, energies


def _lengths(columns: Columns, shortest: int) -> list[int]:
    """Of the sentences that are left: as many end at a position as inputs are fewer at the next."""
    counts = [len(columns.get(position, ())) for position in range(max(columns, default=-1) + 2)]
    ends = {n + 1: max(0, own - after) for n, (own, after) in enumerate(itertools.pairwise(counts))}
    return sorted((length for length in Counter(ends).elements() if length > shortest), reverse=True)
