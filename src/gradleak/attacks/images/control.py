"""The control: the mean of the auxiliary images, whatever the update says."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gradleak.attacks.base import AttackContext, Reconstruction
from gradleak.attacks.images.answers import image_uris
from gradleak.attacks.images.base import ImageAttack
from gradleak.models.image import ImageModel
from gradleak.updates.update import Update


class ImageControl(ImageAttack):
    name = "control"
    reads = False
    summary = "no attack: the mean auxiliary image, the best guess by MSE with no look at the update; else plain grey"

    def run(self, updates: Sequence[Update], model: ImageModel, context: AttackContext) -> list[Reconstruction]:
        auxiliary = context.auxiliary
        mean = auxiliary.mean if auxiliary else torch.full(model.shape, 0.5)
        (image,) = image_uris(mean[None])
        return [Reconstruction(images=[image] * (update.known.size or 1)) for update in updates]
