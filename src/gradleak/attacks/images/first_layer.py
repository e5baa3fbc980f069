"""The layer that sees the image itself, and what of an update shows its output gradients piece by piece.

A vision Transformer cuts an image into patches, multiplies each with one matrix and adds a position embedding. The
gradient of the position embedding is then the gradient by that layer's output, patch by patch. A dense layer over the
whole image is the same with a single piece, and its bias in the place of the position embedding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradleak.models.image import ImageModel

# How near two ways to compute the same gradient come in fp32, relative to their size.
SAME = 1e-3


@dataclass(frozen=True)
class FirstLayer:
    """Names of the layer's weight and of the parameter that shows its output gradients, and how images are cut.

    `shows` has rows of the layer's width; the first `skipped` belong to tokens that are no part of the image.
    """

    weight: str
    shows: str
    skipped: int
    shape: tuple[int, int, int]
    patch: tuple[int, int]

    @property
    def pieces(self) -> int:
        _, height, width = self.shape
        return (height // self.patch[0]) * (width // self.patch[1])

    def cut(self, images: Tensor) -> Tensor:
        """Images (..., channels, height, width) as rows of pixels, (..., pieces, pixels of a piece)."""
        channels, height, width = self.shape
        (tall, wide), lead = self.patch, images.shape[:-3]
        parts = images.reshape(*lead, channels, height // tall, tall, width // wide, wide)
        places = [len(lead) + each for each in (1, 3, 0, 2, 4)]
        return parts.permute(*range(len(lead)), *places).reshape(*lead, self.pieces, -1)

    def joined(self, pieces: Tensor) -> Tensor:
        """What `cut` makes rows of."""
        channels, height, width = self.shape
        tall, wide = self.patch
        parts = pieces.reshape(height // tall, width // wide, channels, tall, wide)
        return parts.permute(2, 0, 3, 1, 4).reshape(self.shape)

    def equations(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Output gradients (pieces, width) and the weight's gradient (width, pixels of a piece), in float64.

        The product of the first, transposed, and the pieces of the image is the second.
        """
        weight = tensors[self.weight].double().flatten(1)
        outputs = tensors[self.shows].double().reshape(-1, len(weight))[self.skipped :]
        return outputs, weight


def first_layer(model: ImageModel) -> FirstLayer | None:
    """The first layer of a model, if it sees pieces of the image and something shows its output gradients.

    Both are found by running the model on random images of our own, so that it does not matter how it is written.
    """
    run = _Run(model)
    found = run.layer()
    if found is None:
        return None
    name, patch = found
    weight = f"{name}.weight" if name else "weight"
    gradients = dict(zip(run.names, run.gradients, strict=True))
    outputs = run.output_gradient
    for shows, gradient in gradients.items():
        width, rows = outputs.shape[-1], gradient.numel() // outputs.shape[-1]
        if shows == weight or gradient.shape[-1] != width or rows < len(outputs):
            continue
        skipped = rows - len(outputs)
        if float((gradient.reshape(rows, width)[skipped:] - outputs).norm()) <= SAME * float(outputs.norm()):
            return FirstLayer(weight, shows, skipped, model.shape, patch)
    return None


class _Run:
    """The model's gradients on two random images, with what its first layer saw and got back."""

    def __init__(self, model: ImageModel) -> None:
        self.model = model
        self.called: list[tuple[str, nn.Module, Tensor, Tensor]] = []
        parameters = model.parameters()
        self.names = list(parameters)
        self.pixels = torch.rand(2, *model.shape, generator=torch.Generator().manual_seed(0)).to(model.device)
        hooks = [
            part.register_forward_hook(self._note(name))
            for name, part in model.module.named_modules()
            if isinstance(part, nn.Linear | nn.Conv2d)
        ]
        try:
            loss = F.cross_entropy(model.logits(self.pixels), torch.arange(2, device=model.device))
        finally:
            for hook in hooks:
                hook.remove()
        wanted = [*parameters.values(), self.called[0][3]]
        found = torch.autograd.grad(loss, wanted, allow_unused=True)
        *own, output = [torch.zeros_like(w) if g is None else g for w, g in zip(wanted, found, strict=True)]
        self.gradients = own
        rows = output.flatten(2).transpose(1, 2) if output.dim() == 4 else output.reshape(2, -1, output.shape[-1])
        self.output_gradient = rows.sum(dim=0)

    def _note(self, name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        def note(part: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> None:
            self.called.append((name, part, given[0].detach(), output))

        return note

    def layer(self) -> tuple[str, tuple[int, int]] | None:
        """The name of the first layer and the sides of a piece; None if it sees anything but whole pieces."""
        name, part, seen, _ = self.called[0]
        model, pixels = self.model, self.pixels
        inputs = pixels if model.normalisation is None else model.normalisation.applied(pixels)
        if seen.numel() != inputs.numel() or not torch.equal(seen.reshape(inputs.shape), inputs):
            return None
        _, height, width = model.shape
        if isinstance(part, nn.Linear):
            return (name, (height, width)) if part.in_features == math.prod(model.shape) else None
        if not isinstance(part, nn.Conv2d) or part.groups != 1 or isinstance(part.padding, str):
            return None
        tall, wide = part.kernel_size
        whole = part.stride == part.kernel_size and not any(part.padding) and height % tall == width % wide == 0
        return (name, (tall, wide)) if whole else None
