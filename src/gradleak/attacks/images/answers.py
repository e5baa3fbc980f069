"""From the rows of a search to a reconstruction per update."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradleak.attacks.base import Reconstruction
from gradleak.attacks.images.descent import Descent
from gradleak.attacks.images.labels import labels_of, what_was_found
from gradleak.core.budget import Budget
from gradleak.core.errors import GradleakError
from gradleak.data.pictures import to_bytes
from gradleak.data.png import to_uri
from gradleak.models.image import ImageModel
from gradleak.updates.update import Update


def known_labels(updates: Sequence[Update], model: ImageModel, attack: str) -> Tensor:
    """The classes of every update, (updates, batch)."""
    labels = [labels_of(update, model, attack) for update in updates]
    if len({len(row) for row in labels}) > 1:
        raise GradleakError(f"{attack} attacks updates together only if they have equally many images")
    return torch.tensor(labels, device=model.device)


def best_restarts(losses: Tensor, which: Tensor, updates: int) -> list[int]:
    """For every update the row of its restart with the lowest objective.

    >>> best_restarts(torch.tensor([3.0, 1.0, 2.0, 5.0]), torch.tensor([0, 1, 0, 1]), 2)
    [2, 1]
    """
    return [int(torch.where(which == number, losses, torch.inf).argmin()) for number in range(updates)]


def image_uris(images: Tensor) -> list[str]:
    """Images from 0 to 1, (batch, channels, height, width), as PNG texts."""
    return [to_uri(image) for image in to_bytes(images)]


def reconstructions(updates: Sequence[Update], labels: Tensor, best: Descent, budget: Budget) -> list[Reconstruction]:
    """A reconstruction per update, from a search with a row for each."""
    return [
        Reconstruction(
            images=image_uris(images),
            labels=own.tolist(),
            found=found,
            loss=float(loss),
            trace=trace,
            status=budget.reason,
        )
        for images, loss, trace, own, found in zip(
            best.images, best.losses, best.trace, labels, what_was_found(updates), strict=True
        )
    ]
