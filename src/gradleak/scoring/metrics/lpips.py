"""LPIPS (Zhang et al. 2018): how different two images look to a network, with the authors' weights as an asset."""

from __future__ import annotations

import functools
import io
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from gradleak.core import assets
from gradleak.core.errors import GradleakError
from gradleak.core.progress import Progress
from gradleak.scoring.metric import ImagePair, Metric

Backbone = Literal["alexnet", "vgg16"]

# Both networks were trained on images scaled so; these are for values from −1 to 1.
SHIFT, SCALE = (-0.030, -0.088, -0.188), (0.458, 0.448, 0.450)
# Below this many pixels a side AlexNet's later layers have nothing left to look at.
LEAST = 32
# All that a pickle of numpy arrays names.
_ALLOWED = {("numpy.core.multiarray", "_reconstruct"), ("numpy", "ndarray"), ("numpy", "dtype")}

# Of every convolution: stride and padding; whether a pooling (size, stride) comes before; whether it is compared.
_Layer = tuple[int, int, tuple[int, int] | None, bool]
_ALEXNET: tuple[_Layer, ...] = (
    (4, 2, None, True),
    (1, 2, (3, 2), True),
    (1, 1, (3, 2), True),
    (1, 1, None, True),
    (1, 1, None, True),
)
_VGG16: tuple[_Layer, ...] = tuple(
    (1, 1, (2, 2) if first and block else None, last)
    for block, count in enumerate((2, 2, 3, 3, 3))
    for first, last in [(i == 0, i == count - 1) for i in range(count)]
)
LAYERS = {"alexnet": ("AlexNet_0", _ALEXNET), "vgg16": ("VGG16_0", _VGG16)}


class Lpips:
    """The distance of images with values from 0 to 1, (batch, 3, height, width); 0 for equal ones."""

    def __init__(self, weights: Mapping[str, Any], backbone: Backbone) -> None:
        name, self.layers = LAYERS[backbone]
        kernels = [weights[name][f"Conv_{i}"] for i in range(len(self.layers))]
        # Kernels lie as (height, width, in, out).
        self.kernels = [torch.tensor(k["kernel"]).permute(3, 2, 0, 1).contiguous() for k in kernels]
        self.biases = [torch.tensor(k["bias"]) for k in kernels]
        heads = sum(compared for *_, compared in self.layers)
        self.heads = [torch.tensor(weights[f"NetLinLayer_{i}"]["Conv_0"]["kernel"])[0, 0, :, 0] for i in range(heads)]

    @torch.no_grad()
    def distances(self, truth: Tensor, guess: Tensor) -> Tensor:
        """One number a pair. Grey images are taken as colour ones; small ones are enlarged to 32 pixels."""
        total = torch.zeros(len(truth))
        for a, b, head in zip(self._features(truth), self._features(guess), self.heads, strict=True):
            apart = (_unit(a) - _unit(b)).square()
            total += (apart * head[:, None, None]).sum(dim=1).mean(dim=(1, 2))
        return total

    def _features(self, images: Tensor) -> list[Tensor]:
        images = images.expand(-1, 3, -1, -1)
        if min(images.shape[-2:]) < LEAST:
            images = F.interpolate(images, size=(LEAST, LEAST), mode="bilinear", antialias=True)
        states = (2 * images - 1 - torch.tensor(SHIFT)[:, None, None]) / torch.tensor(SCALE)[:, None, None]
        features = []
        for (stride, padding, pool, compared), kernel, bias in zip(
            self.layers, self.kernels, self.biases, strict=True
        ):
            if pool is not None:
                states = F.max_pool2d(states, *pool)
            states = F.conv2d(states, kernel, bias, stride, padding).relu()
            if compared:
                features.append(states)
        return features


@functools.cache
def load_lpips(backbone: Backbone = "vgg16") -> Lpips:
    """The published network; its weights are fetched on first use (asset `lpips`)."""
    return Lpips(read_arrays(assets.pull("lpips") / f"{backbone}.ckpt"), backbone)


def read_arrays(path: Path) -> dict[str, Any]:
    """Nested tables of arrays out of a pickle, which may name nothing but numpy arrays."""
    try:
        arrays = _ArrayUnpickler(io.BytesIO(path.read_bytes())).load()
    except (pickle.UnpicklingError, EOFError, ValueError, TypeError, AttributeError, IndexError) as error:
        raise GradleakError(f"{path} does not hold plain arrays: {error}") from error
    if not isinstance(arrays, dict):
        raise GradleakError(f"{path} does not hold a table of arrays")
    return arrays


class _ArrayUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        if name == "_reconstruct":
            from numpy._core.multiarray import _reconstruct

            return _reconstruct
        return getattr(np, name)


def _unit(features: Tensor) -> Tensor:
    return features / (features.square().sum(dim=1, keepdim=True).sqrt() + 1e-10)


def _lpips(pair: ImagePair) -> float:
    truth, guess = (torch.tensor(image)[None].float() for image in (pair.truth, pair.guess))
    return float(load_lpips().distances(truth, guess))


def _load(progress: Progress) -> object:
    assets.pull("lpips", progress)
    return load_lpips()


LPIPS = Metric(
    "lpips", "LPIPS", "how different they look to a network (VGG16); lower is closer", low=0, high=1,
    higher_is_closer=False, modality="images", function=_lpips, digits=3, bound_digits=3,
    optional=True, prepare=_load,
)  # fmt: skip
