"""How much of each parameter's update is signal, and how much is noise or the rounding of weights."""

from __future__ import annotations

import torch

from gradleak.attacks.evidence.defended import grid_step
from gradleak.attacks.evidence.noise import noise_level
from gradleak.defenses import known_defenses
from gradleak.matching.parameters import typical_entry
from gradleak.models.text import TextModel
from gradleak.updates.precision import DTYPES
from gradleak.updates.update import Update


def signal_fractions(update: Update, model: TextModel) -> dict[str, float] | None:
    """For every parameter the fraction of its squared update that is signal, 0 to 1; None where all of it is.

    Noise shows in the spectrum, rounding to a grid in the values. A client that sends weights rounds each of them
    after every step; the attacker knows the weights, so it knows the size of these errors: uniform over the gap to
    the next number, which for small steps hides whole matrices.
    """
    errors = _error_powers(update, model)
    if not any(errors.values()):
        return None
    powers = {name: typical_entry(tensor) ** 2 for name, tensor in update.tensors.items()}
    return {name: max(0.0, 1 - errors[name] / power) if power else 0.0 for name, power in powers.items()}


def _error_powers(update: Update, model: TextModel) -> dict[str, float]:
    """The mean squared error on an entry of every parameter."""
    rule = update.manifest.client
    if not rule.local:
        level = noise_level(update, model)
        grids = {name: grid_step(tensor) for name, tensor in update.tensors.items()}
        found = {name: level * level if step is None else step * step / 12 for name, step in grids.items()}
        formats = [each for each in (rule.precision, rule.wire) if each != "fp32"]
        return {
            name: error + sum(_rounding(update.tensors[name], DTYPES[each]) for each in formats)
            for name, error in found.items()
        }
    # Errors of several clients are independent, so their mean has less of them.
    clients = update.manifest.clients
    weights = {name: model.parameters()[name].detach() for name in update.tensors}
    errors = {
        name: update.local_steps * _rounding(weight, DTYPES[rule.precision]) / clients
        for name, weight in weights.items()
    }
    if rule.rounds_on_the_wire:
        altered = any(defense is None or defense.alters for defense in known_defenses(update.manifest.defenses))
        for name, sent in (update.tensors if altered else weights).items():
            errors[name] += _rounding(sent, DTYPES[rule.wire]) / clients
    return errors


def _rounding(values: torch.Tensor, dtype: torch.dtype) -> float:
    """The mean squared error of rounding once to a number format."""
    size = values.abs()
    if dtype == torch.float32:
        gap = torch.nextafter(size, torch.full_like(size, float("inf"))) - size
    else:
        format_ = torch.finfo(dtype)
        gap = format_.eps * torch.exp2((size.clamp_min(format_.tiny).frexp().exponent - 1).double())
    return float(gap.square().mean()) / 12
