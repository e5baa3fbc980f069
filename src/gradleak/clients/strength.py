"""How strong an update is against the noise that defences put on it. Only the honest side can measure both."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from torch import Tensor

from gradleak.clients.sender import Sender
from gradleak.updates.update import Update

AnyClient = TypeVar("AnyClient", bound=Sender)


@dataclass(frozen=True)
class Strength:
    """Norms over all coordinates that the attacker sees.

    signal: of what would have been sent without the noise. noise: of the noise, as expected from the defences'
    settings, or where nothing follows from these, of how far it moved this update.
    """

    signal: float
    noise: float


def strength(client: AnyClient, update: Update, examples: int, send_again: Callable[[AnyClient], Update]) -> Strength:
    """Signal and noise of an update that this client made of a number of examples, or each of several clients.

    `send_again` makes a client send an update of the same examples with the same secret. What defences do after the
    last noise (rounding, signs, pruning) is left out: both norms are those of the moment when the noise was added.
    """
    deviations = [defense.noise_std(client.rule, examples) for defense in client.defenses]
    noisy = [number for number, deviation in enumerate(deviations) if deviation != 0]
    if not noisy:
        return Strength(norm(update.tensors), 0.0)
    acting = client.defenses[: noisy[-1] + 1]
    kept = [defense.without_noise() for defense in acting]
    plain = send_again(client.with_defenses([defense for defense in kept if defense is not None])).tensors
    known = [deviation for deviation in deviations if deviation is not None]
    if len(known) < len(deviations):  # no formula gives it
        noised = send_again(client.with_defenses(acting)).tensors
        return Strength(norm(plain), norm({name: noised[name] - plain[name] for name in plain}))
    coordinates = sum(tensor.numel() for tensor in plain.values())
    return Strength(norm(plain), math.hypot(*known) * math.sqrt(coordinates / client.aggregate))


def norm(tensors: Mapping[str, Tensor]) -> float:
    """Of all tensors as one vector."""
    return math.hypot(*(float(tensor.norm()) for tensor in tensors.values()))
