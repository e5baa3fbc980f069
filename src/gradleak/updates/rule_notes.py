"""What an attack's view of an update undoes of the client's optimiser, and what it leaves, in words."""

from __future__ import annotations

import dataclasses

from torch import Tensor

from gradleak.core.errors import GradleakError
from gradleak.models.base import Target
from gradleak.updates.gradient import undo
from gradleak.updates.update import Update

# Entries by which it is judged how much of them comes back: undoing all of a large update again would take long.
SAMPLE = 1 << 21


def rule_notes(update: Update, model: Target) -> list[str]:
    """Lines that begin with `undone: ` or `not undone: `; none of a plain gradient or plain steps of SGD."""
    if not update.manifest.client.local:
        return []
    sample: dict[str, Tensor] = {}
    entries = 0
    for name, tensor in sorted(update.tensors.items(), key=lambda each: each[1].numel()):
        if sample and entries + tensor.numel() > SAMPLE:
            break
        sample[name], entries = tensor, entries + tensor.numel()
    try:
        return list(undo(dataclasses.replace(update, tensors=sample), model).notes)
    except GradleakError:  # the attack itself says what is wrong
        return []
