"""Search for whole sentences of an encoder: flip token after token until everything fits the span.

The energy of a sentence is the mean squared distance of its states inside the first layer, after the attention,
from the span of that layer's feed-forward gradient, or else at the entry of the second layer. There every state has
already mixed with its neighbours, so only a sentence that is right as a whole fits. A flip is judged by the energy's
derivative first, the best flips exactly.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gradleak.attacks.spans.candidates import Choices
from gradleak.attacks.spans.probe import Probe
from gradleak.attacks.spans.spans import Span
from gradleak.core.budget import Budget
from gradleak.models.adapter import Part
from gradleak.models.text import TextModel

# Below this energy a sentence is worth an exact check; wrong sentences stay far above, right sentences far below.
PROMISING = 1e-5
# Flips of a sentence tried exactly in a step.
FLIPS = 16
STEPS = 60
CHUNK = 256

# What is tried of (rows, positions) picks in a step, (rows, tries, positions); the last is which rows they are.
Tries = Callable[["Energy", "Frames", Tensor, Tensor], Tensor]


class Energy:
    """The energy of many sentences at once, in fp32."""

    def __init__(self, model: TextModel, span: Span, part: Part) -> None:
        """`part` is a part that sees what the span is of."""
        self.model = model
        self.span = span
        self.complement = span.complement.to(model.token_embedding)
        self.probe = Probe(model, [model.adapter.parts[0]["query"], part])

    def values(self, ids: Tensor, mask: Tensor) -> Tensor:
        with torch.no_grad():
            return torch.cat(
                [
                    self._of(self.probe(input_ids=i, mask=m.long())[1], m)
                    for i, m in zip(ids.split(CHUNK), mask.split(CHUNK), strict=True)
                ]
            )

    def slopes(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Derivatives by what the first layer sees, (sentences, positions, width)."""
        slopes = []
        for i, m in zip(ids.split(CHUNK), mask.split(CHUNK), strict=True):
            embeds = self.model.embed(i).requires_grad_()
            inputs, states = self.probe(inputs_embeds=embeds, mask=m.long())
            slopes.append(torch.autograd.grad(self._of(states, m).sum(), inputs)[0])
        return torch.cat(slopes)

    def _of(self, states: Tensor, mask: Tensor) -> Tensor:
        apart = (self.span.unit(states) @ self.complement.T).square().sum(dim=-1)
        return (apart * mask).sum(dim=1) / mask.sum(dim=1)


class Frames:
    """Sentences of given lengths over choices: special tokens in place, padding at the end."""

    def __init__(self, model: TextModel, choices: Choices, lengths: Tensor) -> None:
        places = torch.arange(len(choices.tokens), device=lengths.device)
        self.choices = choices
        self.mask = places < lengths[:, None]
        self.free = (places >= len(model.prefix)) & (places < lengths[:, None] - len(model.suffix))
        filler = model.tokenizer.pad_token_id or 0
        self.fixed = torch.full(self.mask.shape, filler, dtype=torch.long, device=lengths.device)
        self.fixed[:, : len(model.prefix)] = torch.tensor(model.prefix, device=lengths.device)
        for back, token in enumerate(reversed(model.suffix), start=1):
            self.fixed.scatter_(1, lengths[:, None] - back, token)

    def in_order(self, rows: Tensor) -> Tensor:
        """Picks of these rows that take the choices one after the other; some twice where there are more places."""
        free, choices = self.free[rows].long(), self.choices.tokens.shape[1]
        number = (free.cumsum(dim=1) - 1).clamp_min(0)
        return (number * choices // free.sum(dim=1, keepdim=True).clamp_min(1)).clamp_max(choices - 1)

    def ids(self, picks: Tensor, rows: Tensor) -> Tensor:
        """Tokens of picks (rows, ..., positions) for these rows."""
        places = torch.arange(picks.shape[-1], device=picks.device)
        tokens = self.choices.tokens[places, picks]
        shape = (len(rows),) + (1,) * (picks.dim() - 2) + (picks.shape[-1],)
        return torch.where(self.free[rows].view(shape), tokens, self.fixed[rows].view(shape))


def descend(
    energy: Energy,
    frames: Frames,
    picks: Tensor,
    budget: Budget,
    enough: float = PROMISING,
    tries: Tries | None = None,
    first: bool = False,
) -> tuple[Tensor, Tensor]:
    """Flip tokens of (starts, positions) picks until no flip helps; the tokens and energies reached.

    An energy up to `enough` is not lowered further. `tries` gives what is tried in a step, if not the best flips.
    With `first` the descent ends with the first that gets there.
    """
    tries = tries or best_flips
    everyone = torch.arange(len(picks), device=picks.device)
    values = energy.values(frames.ids(picks, everyone), frames.mask)
    stuck = torch.zeros_like(values, dtype=torch.bool)
    for _ in range(STEPS):
        active = ((values > enough) & ~stuck).nonzero()[:, 0]
        if not len(active) or budget.tick() or (first and bool((values <= enough).any())):
            break
        tried = tries(energy, frames, picks[active], active)
        ids = frames.ids(tried, active)
        mask = frames.mask[active][:, None].expand_as(ids)
        energies = energy.values(ids.flatten(0, 1), mask.flatten(0, 1)).view(ids.shape[:2])
        best = energies.min(dim=1)
        better = best.values < values[active]
        picks[active[better]] = tried[better, best.indices[better]]
        values[active[better]] = best.values[better]
        stuck[active[~better]] = True
    return frames.ids(picks, everyone), values


def flip_gains(energy: Energy, frames: Frames, picks: Tensor, rows: Tensor) -> Tensor:
    """By how much each choice at each place changes the energy, to first order; infinite where it cannot stand."""
    choices = frames.choices
    places = torch.arange(picks.shape[1], device=picks.device)
    slopes = energy.slopes(frames.ids(picks, rows), frames.mask[rows])
    here = (slopes * choices.inputs[places, picks]).sum(dim=-1, keepdim=True)
    gains = torch.einsum("rpd,pcd->rpc", slopes, choices.inputs) - here
    gains = gains.masked_fill(~(choices.allowed & frames.free[rows][..., None]), float("inf"))
    return gains.scatter_(2, picks[..., None], float("inf"))


def best_flips(energy: Energy, frames: Frames, picks: Tensor, rows: Tensor) -> Tensor:
    """The single flips that should lower the energy most, to first order: (rows, flips, positions)."""
    gains = flip_gains(energy, frames, picks, rows)
    width = gains.shape[2]
    best = gains.flatten(1).topk(min(FLIPS, gains[0].numel()), largest=False)
    # Where there are fewer flips than asked for, the rest repeat the sentence as it is.
    place = torch.where(best.values.isinf(), 0, best.indices // width)
    choice = torch.where(best.values.isinf(), picks[:, :1], best.indices % width)
    return picks[:, None].repeat(1, best.values.shape[1], 1).scatter_(2, place[..., None], choice[..., None])
