"""Gradients of many batches of images at once: one row per batch, as one long vector."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _BatchNorm

from gradleak.models.image import ImageModel


def batch_gradients(
    model: ImageModel, names: Sequence[str], pixels: Tensor, labels: Tensor, training: bool = False
) -> Tensor:
    """The gradient of every row's mean loss by the named parameters, (rows, coordinates).

    `pixels` are (rows, batch, channels, height, width), `labels` (rows, batch). Pixels that
    require a gradient get one. In `training` batch norms use the statistics of each row's own batch;
    nothing is dropped, as nobody else knows what a client dropped.
    """
    parameters = {name: p.detach() for name, p in model.module.named_parameters()}
    trained = {name: parameters[name] for name in names}
    state = parameters | dict(model.module.named_buffers())

    def loss(weights: dict[str, Tensor], images: Tensor, classes: Tensor) -> Tensor:
        return F.cross_entropy(model.logits(images, state | weights), classes)

    # The fused attention of torch has no second derivative.
    statistics = batch_statistics(model.module) if training else contextlib.nullcontext()
    with statistics, sdpa_kernel(SDPBackend.MATH):
        gradients = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(trained, pixels, labels)
    return torch.cat([gradients[name].flatten(1) for name in names], dim=1)


def reached(model: ImageModel) -> list[str]:
    """The parameters that the loss depends on, and that clients send therefore."""
    parameters = model.parameters()
    pixels = torch.zeros(1, *model.shape, device=model.device)
    loss = F.cross_entropy(model.logits(pixels), torch.zeros(1, dtype=torch.long, device=model.device))
    gradients = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    return [name for name, gradient in zip(parameters, gradients, strict=True) if gradient is not None]


@contextlib.contextmanager
def batch_statistics(module: nn.Module) -> Iterator[None]:
    """Batch norms as they are in training, but without a trace in their running statistics."""
    norms = [part for part in module.modules() if isinstance(part, _BatchNorm)]
    before = [(norm.training, norm.track_running_stats) for norm in norms]
    try:
        for norm in norms:
            norm.training, norm.track_running_stats = True, False
        yield
    finally:
        for norm, (training, tracking) in zip(norms, before, strict=True):
            norm.training, norm.track_running_stats = training, tracking
