"""The gradient an update stands for."""

from __future__ import annotations

import dataclasses

from gradleak.core.errors import GradleakError
from gradleak.updates.update import Update


def as_gradient(update: Update) -> Update:
    """An update whose tensors are, or approximate, the gradient of the mean loss over the batch.

    Weights that moved by plain SGD moved by the step size times the sum of the gradients along the way. While the
    steps are small, these are the gradients at the start, and their mean is that of the whole batch.
    """
    rule = update.manifest.client
    if rule.name == "fedsgd":
        return update
    scale = 1 / (rule.lr * update.local_steps)
    tensors = {name: t * scale for name, t in update.tensors.items()}
    if not all(bool(t.isfinite().all()) for t in tensors.values()):
        raise GradleakError(
            f"local steps of size {rule.lr:g}, as the manifest says, would make this update's gradient infinite"
        )
    return dataclasses.replace(update, tensors=tensors)
