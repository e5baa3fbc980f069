"""Gradients of many batches of images at once: one row per batch, as one long vector."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from gradleak.models.image import ImageModel


def batch_gradients(model: ImageModel, names: Sequence[str], pixels: Tensor, labels: Tensor) -> Tensor:
    """The gradient of every row's mean loss by the named parameters, (rows, coordinates).

    `pixels` are (rows, batch, channels, height, width), `labels` (rows, batch). Pixels that
    require a gradient get one.
    """
    parameters = {name: p.detach() for name, p in model.module.named_parameters()}
    trained = {name: parameters[name] for name in names}
    state = parameters | dict(model.module.named_buffers())

    def loss(weights: dict[str, Tensor], images: Tensor, classes: Tensor) -> Tensor:
        logits = torch.func.functional_call(model.module, state | weights, (images,))
        return F.cross_entropy(logits, classes)

    gradients = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(trained, pixels, labels)
    return torch.cat([gradients[name].flatten(1) for name in names], dim=1)
