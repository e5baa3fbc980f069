"""What an image inverter is given of an update: the whole of it, or the same put in an order that helps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

ImageFeatures = Literal["structured", "whole"]
# Raised when the features change: a network that was trained on others is then trained anew.
FEATURES_VERSION = 3
TINY = 1e-12


def image_features(tensors: Mapping[str, Tensor], head: str, kind: ImageFeatures) -> Tensor:
    """Updates given as (rows, *shape) a tensor, as a long row each.

    whole: all coordinates as they are, as published. structured: of a single image the last layer's gradient is the
    error of each class times the inputs of that layer, so it is replaced by these two vectors. Every class's row
    shows the same inputs, and their mean, weighted by their sizes, has the least noise; their scale says how sure the
    model was and nothing of the image, so it is removed.
    """
    weight = f"{head}.weight"
    if kind == "whole" or weight not in tensors:
        return torch.cat([tensor.flatten(1) for tensor in tensors.values()], dim=1)
    errors, inputs = outer_factors(tensors[weight].float().flatten(2))  # that of a convolution has further sides
    others = [tensor.flatten(1) for name, tensor in tensors.items() if name != weight]
    # Of size 1 in the mean, so that they are not taken for something that hardly varies.
    unscaled = F.normalize(inputs, dim=1) * inputs.shape[1] ** 0.5
    return torch.cat([errors, unscaled, *others], dim=1)


def outer_factors(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """The two vectors whose product each matrix is, or nearly is: (rows, classes) and (rows, inputs).

    >>> errors, inputs = outer_factors(torch.outer(torch.tensor([1.0, -2.0]), torch.tensor([3.0, 5.0]))[None])
    >>> errors.tolist(), inputs.tolist()
    ([[8.0, -16.0]], [[0.375, 0.625]])
    """
    errors = matrices.sum(dim=2)
    inputs = torch.einsum("nc,nci->ni", errors, matrices)
    return errors, inputs / errors.square().sum(dim=1, keepdim=True).clamp_min(TINY)
