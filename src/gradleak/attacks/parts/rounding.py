"""How much of each parameter's update is signal, and how much the rounding of the weights it is a difference of."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gradleak.models.target import TargetModel
from gradleak.update import Update


def signal_shares(updates: Sequence[Update], model: TargetModel) -> dict[str, float] | None:
    """For every parameter the share of its squared update that is no rounding, 0 to 1; None for plain gradients.

    A client that sends weights rounds each of them after every step. The attacker knows the weights, so it knows the
    size of these errors: uniform over the gap to the next number, which for small steps drowns whole matrices.
    """
    if all(update.manifest.client.name == "fedsgd" for update in updates):
        return None
    noise = {name: _rounding(weight.detach()) for name, weight in model.parameters().items()}
    shares = {name: 0.0 for update in updates for name in update.tensors}
    for update in updates:
        known = update.known
        rule = update.manifest.client
        steps = rule.steps(known.batch_size or len(known.lengths or known.labels or ()) or rule.batch)
        for name, moved in update.tensors.items():
            power = float(moved.square().mean())
            shares[name] += max(0.0, 1 - steps * noise[name] / power) / len(updates) if power else 0.0
    return shares


def _rounding(weight: torch.Tensor) -> float:
    """The mean squared error of rounding a weight once."""
    size = weight.abs()
    gap = torch.nextafter(size, torch.full_like(size, float("inf"))) - size
    return float(gap.square().mean()) / 12
