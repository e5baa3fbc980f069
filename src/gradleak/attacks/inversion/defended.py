"""Defences on the many updates that an inverter is trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gradleak.core.errors import GradleakError
from gradleak.defenses.base import Defense
from gradleak.models.base import Target


def defend(
    tensors: Mapping[str, Tensor], defenses: Sequence[Defense], model: Target, generator: torch.Generator
) -> dict[str, Tensor]:
    """Updates given as (rows, *shape) a tensor, each as it would be sent."""
    defended = dict(tensors)
    for defense in defenses:
        defended = defense.apply_many(defended, model, generator)
    return defended


def check_learnable(defenses: Sequence[Defense]) -> None:
    """Refuse defences that act while the gradient is computed: they cannot be put on top of a plain one."""
    for defense in defenses:
        if defense.gradient(torch.Generator()) is not None:
            raise GradleakError(f"an inverter cannot be trained under {defense.name}: it changes how gradients arise")
