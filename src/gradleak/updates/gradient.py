"""The gradient an update stands for: what the client's optimiser did to it is undone as far as the rule says how."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gradleak.core.errors import GradleakError
from gradleak.core.text import counted
from gradleak.models.base import Target
from gradleak.updates.client_rule import ClientRule
from gradleak.updates.decay import decaying
from gradleak.updates.optimisers import ARITHMETIC, drifted, gradient_weights, grid, rounding, trained
from gradleak.updates.precision import DTYPES
from gradleak.updates.update import Update

Kind = Literal["gradient", "mean gradient", "first step", "normalised sum"]

# Rounding errors are spread evenly between their limits, which makes their standard deviation so much smaller.
EVENLY = 3**-0.5
# A step of Adam has size 1 at most; what exceeds it by more than so many times its rounding was not made by it.
MARGIN, SLACK = 10.0, 1e-3


@dataclass(frozen=True)
class Undone:
    """An update with its optimiser undone.

    `errors` is the standard error of every coordinate where that is known: of the first step of Adam, which shows
    small entries exactly and of large ones little more than the sign, and of one plain step where `with_rounding`
    was asked. `notes` say in words what was undone and what could not be.
    """

    gradient: Update
    kind: Kind
    errors: Mapping[str, Tensor] | None = None
    notes: tuple[str, ...] = ()


def as_gradient(update: Update, model: Target) -> Update:
    """An update whose tensors are, or approximate, the gradient of the mean loss over the batch."""
    return undo(update, model).gradient


def undo(update: Update, model: Target) -> Undone:
    """The best estimate of the gradient behind an update of this model.

    Weights that moved by plain SGD moved by the step size times the sum of the gradients along the way. While the
    steps are small, these are the gradients at the start, and their mean is that of the whole batch. A first step of
    Adam is g / (|g| + eps), which gives g back where rounding leaves something of the difference from 1. Later steps
    only give a sum of such normalised gradients.
    """
    rule = update.manifest.client
    if not rule.local:
        return Undone(update, "gradient")
    rates = rule.rates(update.sentences_per_client)
    if not sum(rates):
        raise GradleakError(
            f"the step size of {rule.name} is 0 in every step, as the manifest says: warm-up took "
            f"{counted(rule.warmup, 'step')}, and there were {len(rates)}; weights cannot have moved"
        )
    notes = [f"weight decay of {rule.wd:g}"] if rule.wd else []
    if not rule.adaptive:
        weights = gradient_weights(rule, rates)
        if rule.momentum and len(rates) > 1:
            notes.append(f"momentum of {rule.momentum:g}, by which early gradients count more")
        return Undone(_divided(update, model, rates, sum(weights)), "mean gradient", notes=_undone(notes))
    if len(rates) == 1 and update.manifest.clients == 1:
        return _first_step(update, model, rates[0], notes)
    return _normalised_sum(update, model, rates, notes)


def with_rounding(undone: Undone, model: Target) -> Undone:
    """One plain step of one client with the errors that rounded weights leave; anything else as it is."""
    update = undone.gradient
    rule = update.manifest.client
    if undone.kind != "mean gradient" or update.local_steps != 1 or update.manifest.clients != 1:
        return undone
    (rate,), parameters = rule.rates(update.sentences_per_client), model.parameters()
    errors = {
        name: (EVENLY * grid(parameters[name], rate * tensor, rule, rate)).to(tensor.dtype)
        for name, tensor in update.tensors.items()
    }
    return dataclasses.replace(undone, errors=errors)


def _undone(notes: Sequence[str], *left: str) -> tuple[str, ...]:
    return (*(f"undone: {note}" for note in notes), *(f"not undone: {note}" for note in left))


def _rest(update: Update, model: Target, name: str, rates: Sequence[float]) -> Tensor:
    """What moved a parameter beyond decay, in float64; exactly zero where nothing did."""
    rule, moved, weight = update.manifest.client, update.tensors[name], model.parameters()[name]
    still = trained(weight, rule)
    decay = still.double() - (drifted(weight, rule, rates) if name in decaying(model, rule) else still).double()
    rest = moved.double() - decay
    sent = decay if rule.wire == "fp32" else decay.to(DTYPES[rule.wire])
    return torch.where(moved == sent.to(moved.dtype), torch.zeros_like(rest), rest)


def _divided(update: Update, model: Target, rates: Sequence[float], divisor: float) -> Update:
    """The update without decay over a number."""
    rule, scale = update.manifest.client, 1 / divisor
    decayed = decaying(model, rule)
    tensors = {
        name: (_rest(update, model, name, rates).to(t) if name in decayed else t) * scale
        for name, t in update.tensors.items()
    }
    if not all(bool(t.isfinite().all()) for t in tensors.values()):
        raise GradleakError(
            f"local steps of size {rule.lr:g}, as the manifest says, would make this update's gradient infinite"
        )
    return dataclasses.replace(update, tensors=tensors)


def _normalised_sum(update: Update, model: Target, rates: Sequence[float], notes: Sequence[str]) -> Undone:
    rule, clients = update.manifest.client, update.manifest.clients
    # Adam normalises its L2 decay with the gradient; several steps of that have no closed form.
    plain = rule.name == "adamw" or not rule.wd
    whose = f"{counted(len(rates), 'step')} of {rule.name}" + (f" by {clients} clients" if clients > 1 else "")
    left = [f"{whose} divide each gradient by its own size, entry by entry, and their sum is all that shows"]
    if not plain:
        left.append(f"L2 decay of {rule.wd:g}, which is normalised with the gradients")
    source = update if plain else _without_decay(update)
    return Undone(
        _with_rule(_divided(source, model, rates, sum(rates)), rule),
        "normalised sum",
        notes=_undone(notes if plain else [], *left),
    )


def _without_decay(update: Update) -> Update:
    rule = update.manifest.client.model_copy(update={"wd": 0.0})
    return _with_rule(update, rule)


def _with_rule(update: Update, rule: ClientRule) -> Update:
    return dataclasses.replace(update, manifest=update.manifest.model_copy(update={"client": rule}))


def _first_step(update: Update, model: Target, rate: float, notes: Sequence[str]) -> Undone:
    """Sizes of all coordinates whose step differs from 1 by more than rounding; of the others a lower bound."""
    rule, parameters = update.manifest.client, model.parameters()
    tensors, errors, saturated, total = {}, {}, 0, 0
    for name, moved in update.tensors.items():
        weight = parameters[name]
        l2 = rule.name == "adam" and name in decaying(model, rule)
        rest = moved.double() if l2 else _rest(update, model, name, [rate])
        touched = rest != 0  # most rows of a token embedding are not, and need no arithmetic
        off = rounding(weight[touched], moved[touched], rule, rate)
        step = rest[touched] / rate
        if not bool(step.isfinite().all()):
            raise GradleakError(
                f"a step of size {rule.lr:g}, as the manifest says, would make this update's gradient infinite"
            )
        if bool((step.abs() > 1 + MARGIN * off + SLACK).any()) and not update.manifest.defenses:
            if update.known.size is None:  # then there may have been more steps than one
                return _normalised_sum(update, model, [rate], notes)
            raise GradleakError(
                f"the rule cannot have made this update: {name} moved by {float(step.abs().max()):.3g} step sizes, "
                f"and one step of {rule.name} moves a weight by 1 at most"
            )
        sizes, own_errors, full = _sizes(step.abs(), off, rule.eps)
        gradient = torch.zeros_like(rest).masked_scatter(touched, step.sign() * sizes)
        if l2:
            gradient = _without_l2(gradient, moved, weight, rule, rate)
        # An entry that did not move is known as exactly as the smallest one that did.
        least = EVENLY * rule.eps * (float(off.min()) if len(off) else ARITHMETIC)
        error = torch.full_like(rest, least).masked_scatter(touched, own_errors)
        tensors[name], errors[name] = gradient.to(moved.dtype), error.to(moved.dtype)
        saturated, total = saturated + int(full.sum()), total + int(touched.sum())
    undone = [*notes, f"the division of the first step of {rule.name} by its own size"]
    share = 100 * saturated / max(1, total)
    left = [f"of {share:.0f} % of the entries that moved only a sign and a lower bound are left"]
    if rule.clip is not None:
        left.append(f"clipping to norm {rule.clip:g} only scales the gradient, by a number that does not show")
    gradient_update = dataclasses.replace(update, tensors=tensors)
    return Undone(gradient_update, "first step", errors, _undone(undone, *left[share < 0.5 :]))


def _sizes(step: Tensor, off: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """The sizes of entries by their steps and the rounding of these, their standard errors, which are saturated."""
    most = 1 - 2 * off
    full = step > most.clamp_min(0)
    sizes = torch.where(full, eps / (2 * off), eps * step / (1 - step.clamp_max(1 - 1e-12)))
    # Where rounding covers the whole step even its sign is in doubt, and a small number says so best.
    sizes = torch.where(full & (most <= 0), eps * step.clamp_max(1), sizes)
    errors = EVENLY * off * (sizes + eps).square() / eps
    # A saturated size may be anything from its bound up.
    return sizes, torch.where(full, math.sqrt(3) * sizes + errors, errors), full


def _without_l2(gradient: Tensor, moved: Tensor, weight: Tensor, rule: ClientRule, rate: float) -> Tensor:
    """The gradient without the decay that Adam adds to it; 0 where the weight moved as decay alone would move it."""
    before = trained(weight, rule)
    alone = before.clone().requires_grad_()
    alone.grad = torch.zeros_like(before)
    torch.optim.Adam([alone], lr=rate, betas=rule.betas, eps=rule.eps, weight_decay=rule.wd).step()
    same = moved.float() == (before.float() - alone.detach().float()).to(DTYPES[rule.wire]).float()
    return torch.where(same, torch.zeros_like(gradient), gradient - rule.wd * before.double())
