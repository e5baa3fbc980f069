"""What the numbers that a client sends lose on their way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gradleak.clients.training import finite
from gradleak.defenses.base import Defense
from gradleak.models.base import Target
from gradleak.updates.client_rule import ClientRule
from gradleak.updates.precision import DTYPES


def received(
    tensors: Mapping[str, Tensor], model: Target, rule: ClientRule, defenses: Sequence[Defense]
) -> dict[str, Tensor]:
    """The update as it arrives.

    After local steps it is the weights that are sent and rounded; the server takes their difference from its own,
    which have the precision of the training. Where a defence changed the update, the update itself is sent.
    """
    if not rule.rounds_on_the_wire:
        return dict(tensors)
    weights = model.parameters() if rule.local and not any(defense.alters for defense in defenses) else {}
    arrived = {}
    for name, tensor in tensors.items():
        before = weights[name].detach().to(DTYPES[rule.precision]) if name in weights else torch.zeros(())
        sent = (before.to(tensor) - tensor).to(DTYPES[rule.wire])
        arrived[name] = before.to(tensor) - sent.to(tensor)
    return finite(arrived, f"sending in {rule.wire}")
