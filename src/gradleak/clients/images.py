"""The honest side with images: a client that trains on private pictures and shares an update."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from gradleak.clients.sender import DEFAULT_GRANTS, Sender
from gradleak.core.errors import GradleakError
from gradleak.data.pictures import Pictures
from gradleak.defenses.base import Defense
from gradleak.models.image import ImageBatch, ImageModel
from gradleak.updates.update import ClientRule, Known, Update


class ImageClient(Sender):
    """A federated client whose examples are images; it takes what `Client` takes, and the whole model is sent.

    >>> import numpy as np
    >>> from gradleak import ImageClient, load_image_model
    >>> client = ImageClient(load_image_model("lenet"), known=("batch_size", "labels"), defenses=["sign"])
    >>> update = client.update(Pictures(np.zeros((1, 3, 32, 32), dtype=np.uint8), labels=(4,)))
    >>> update.known.labels, update.tensors["head.bias"].tolist()[3:6]
    ((4,), [1.0, -1.0, 1.0])
    """

    def __init__(
        self,
        model: ImageModel,
        known: Collection[str] = DEFAULT_GRANTS,
        client: ClientRule | str = "fedsgd",
        defenses: Sequence[Defense | str] = (),
        observe: str = "all",
    ) -> None:
        super().__init__(known, client, defenses)
        self.observed = set(model.parameters())
        if "lengths" in self.known:
            raise GradleakError("images have no lengths that an attacker could be told")
        self.model: ImageModel = model

    def update(self, pictures: Pictures, seed: int = 0) -> Update:
        """Train on the images and return what would be sent; `seed` fixes dropout and noise."""
        if not len(pictures):
            raise GradleakError("a client needs at least one image")
        self.model.check_shape(pictures.shape)
        self.model.check_labels(pictures.labels)
        device = self.model.device
        targets = torch.tensor(pictures.labels, device=device)
        tensors = self.defended(ImageBatch(pictures.values(device)), targets, seed)
        known = Known(
            batch_size=len(pictures) if "batch_size" in self.known else None,
            labels=pictures.labels if "labels" in self.known else None,
        )
        return self.sent(tensors, known)
