"""How strong an update is against the noise that defences put on it. Only the honest side can measure both."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from gradleak.clients.text import Client
from gradleak.updates.update import Update


@dataclass(frozen=True)
class Strength:
    """Norms over all coordinates that the attacker sees.

    signal: of what would have been sent without the noise. noise: of the noise, as the defences' settings
    make expect.
    """

    signal: float
    noise: float


def strength(
    sender: Client, update: Update, texts: Sequence[str], labels: Sequence[int | str] | None, seed: int
) -> Strength:
    """Signal and noise of an update that this client made of these texts.

    What defences do after the last noise (rounding, signs, pruning) is left out: both norms are those of the moment
    when the noise was added.
    """
    spreads = [defense.spread(sender.rule, len(texts)) for defense in sender.defenses]
    noisy = [number for number, spread in enumerate(spreads) if spread]
    if not noisy:
        return Strength(norm(update.tensors), 0.0)
    quiet = [kept for d in sender.defenses[: noisy[-1] + 1] if (kept := d.quiet()) is not None]
    plain = Client(sender.model, client=sender.rule, defenses=quiet, observe=sender.observe).update(
        texts, labels, seed
    )
    coordinates = sum(tensor.numel() for tensor in plain.tensors.values())
    return Strength(norm(plain.tensors), math.hypot(*spreads) * math.sqrt(coordinates))


def norm(tensors: Mapping[str, Tensor]) -> float:
    """Of all tensors as one vector."""
    return math.hypot(*(float(tensor.norm()) for tensor in tensors.values()))
