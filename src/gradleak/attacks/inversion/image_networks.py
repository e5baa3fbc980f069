"""Networks that turn features of an update into the pixels of an image."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor, nn

from gradleak.attacks.inversion.image_features import FEATURES_VERSION, ImageFeatures
from gradleak.attacks.inversion.ridge import LinearInverter, Rescaled
from gradleak.attacks.inversion.saved import InverterManifest, load_inverter
from gradleak.core.errors import GradleakError
from gradleak.models.image import ImageModel

Layers = Literal["linear", "mlp"]


class ImageNetworkSettings(BaseModel):
    """What an image inverter is built from."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    features: ImageFeatures = Field("structured", description="whole: the gradient as it is, as published")
    features_version: int = FEATURES_VERSION
    layers: Layers = Field("mlp", description="linear: no hidden layers")
    hidden: int = Field(1000, ge=1, le=100_000, description="width of both hidden layers; published: 3000")
    mirror: bool = Field(True, description="whether auxiliary images are also learned from mirrored")


class ImageInverter(Rescaled):
    """Three linear layers from a gradient to the pixels of an image, as published, after a fixed rescaling."""

    def __init__(self, size: int, pixels: int, hidden: int) -> None:
        super().__init__(size)
        self.body = nn.Sequential(
            nn.Linear(size, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, pixels)
        )

    def fit(self, gradients: Tensor, images: Tensor) -> None:
        """Learn how large every coordinate usually is, and begin with the mean image."""
        super().fit(gradients, images)
        last = self.body[-1]
        assert isinstance(last, nn.Linear)
        with torch.no_grad():
            last.bias.copy_(images.mean(dim=0).clamp(0.01, 0.99).logit())

    def forward(self, gradients: Tensor) -> Tensor:
        return torch.sigmoid(self.body(self.scaled(gradients) / math.sqrt(2)))


def build_image_inverter(settings: ImageNetworkSettings, size: int, pixels: int, seed: int = 0) -> Rescaled:
    """A fresh network; its weights follow from the seed."""
    if settings.layers == "linear":
        return LinearInverter(size, pixels)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return ImageInverter(size, pixels, settings.hidden)


def load_image_inverter(folder: Path, model: ImageModel) -> tuple[InverterManifest, Rescaled]:
    """A trained network from its folder, ready for updates of its target."""
    manifest, weights = load_inverter(folder)
    if manifest.kind != "image":
        raise GradleakError(f"{folder} holds an inverter of {manifest.kind}, not of images")
    try:
        settings = ImageNetworkSettings.model_validate(manifest.network)
        network = build_image_inverter(settings, len(weights["centre"]), math.prod(model.shape))
        network.load_state_dict(weights)
        if settings.features_version != FEATURES_VERSION:
            raise GradleakError(f"{folder} was trained by another version of gradleak; train it anew")
    except (ValidationError, KeyError, RuntimeError) as error:
        raise GradleakError(f"{folder}: its weights do not fit its manifest or {model.name}'s images") from error
    return manifest, network.eval().to(model.device)
