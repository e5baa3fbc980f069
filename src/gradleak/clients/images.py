"""The honest side with images: a client that trains on private pictures and shares an update."""

from __future__ import annotations

import torch

from gradleak.clients.sender import Sender
from gradleak.core.errors import GradleakError
from gradleak.core.secret import Secret
from gradleak.data.pictures import Pictures
from gradleak.models.image import ImageBatch, ImageModel
from gradleak.updates.update import Update


class ImageClient(Sender):
    """A federated client whose examples are images; it takes the same arguments as `Client`.

    >>> import numpy as np
    >>> from gradleak import ImageClient, load_model
    >>> client = ImageClient(load_model("lenet"), known=("batch_size", "labels"), defenses=["sign"])
    >>> update = client.update(Pictures(np.zeros((1, 3, 32, 32), dtype=np.uint8), labels=(4,)))
    >>> update.known.labels, update.tensors["head.bias"].tolist()[3:6]
    ((4,), [1.0, -1.0, 1.0])
    """

    model: ImageModel
    modality = "images"
    knowable = ("batch_size", "labels")

    def update(self, pictures: Pictures, secret: Secret | None = None) -> Update:
        """Train on the images and return what would be sent; the same secret draws the same dropout and noise."""
        if not len(pictures):
            raise GradleakError("a client needs at least one image")
        for name, given in (
            ("loss=completion", self.rule.loss == "completion"),
            ("pack", self.rule.pack is not None),
        ):
            if given:
                raise GradleakError(f"{name} is for language models; {self.model.name} reads images")
        self.model.check_shape(pictures.shape)
        self.model.check_labels(pictures.labels)
        device = self.model.device
        targets = torch.tensor(pictures.labels, device=device)
        facts = {"batch_size": len(pictures), "labels": pictures.labels}
        try:
            return self.send(ImageBatch(pictures.values(device)), targets, secret, facts)
        except (ValueError, RuntimeError) as error:  # of torch, as where a batch norm has but one number to normalise
            why = " ".join(str(error).split())[:200]
            raise GradleakError(f"{self.model.name} cannot be trained on this batch: {why}") from error
