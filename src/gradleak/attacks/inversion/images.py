"""Inverters of images: a network that reads a picture off the gradient it gave, trained on auxiliary pictures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor, nn

from gradleak.attacks.inversion.defended import check_learnable, defend
from gradleak.attacks.inversion.image_features import FEATURES_VERSION, ImageFeatures, image_features
from gradleak.attacks.inversion.ridge import LinearInverter, Rescaled
from gradleak.attacks.inversion.saved import InverterManifest, load_inverter
from gradleak.attacks.inversion.training import Example, Problem
from gradleak.core.errors import GradleakError
from gradleak.core.seeds import derive_seed
from gradleak.data.pictures import Pictures
from gradleak.defenses.base import Defense
from gradleak.models.image import ImageModel
from gradleak.models.image_gradients import batch_gradients

# Pictures that are never learned from, at most this share of all.
HELD_OUT, MOST_HELD = 256, 0.2
# Examples from which the typical size of every coordinate is taken.
FIRST_LOOK = 512


Layers = Literal["linear", "mlp"]


class ImageNetworkSettings(BaseModel):
    """What an image inverter is built from."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    features: ImageFeatures = Field("structured", description="whole: the gradient as it is, as published")
    features_version: int = FEATURES_VERSION
    layers: Layers = Field("mlp", description="linear: no hidden layers")
    hidden: int = Field(1000, ge=1, le=100_000, description="width of both hidden layers; published: 3000")
    mirror: bool = Field(True, description="whether auxiliary images are also learned from left to right")


class ImageInverter(Rescaled):
    """Three linear layers from a gradient to the pixels of an image, as published, behind a fixed rescaling."""

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


class ImageProblem(Problem):
    """Gradients of auxiliary images, one each, defended as the victims' are; the network must tell the pixels.

    Gradients are made anew for every step: that costs far less than the step itself, and noise is never the same.
    """

    network: Rescaled

    def __init__(
        self,
        model: ImageModel,
        auxiliary: Pictures,
        defenses: Sequence[Defense],
        settings: ImageNetworkSettings,
        seed: int = 0,
    ) -> None:
        check_learnable(defenses)
        self.model, self.defenses, self.settings, self.seed = model, defenses, settings, seed
        self.names = list(model.parameters())
        for defense in defenses:
            self.names = defense.trained(self.names, model)
        held = min(HELD_OUT, int(MOST_HELD * len(auxiliary)))
        if not held:
            raise GradleakError(f"{len(auxiliary)} auxiliary images are too few to learn from and to check with")
        order = _order(len(auxiliary), derive_seed(seed, "held out")).tolist()
        self.learned, self.others = auxiliary.some(order[held:]), auxiliary.some(order[:held])
        self._images = self.learned.values(model.device), torch.tensor(self.learned.labels, device=model.device)
        given, wanted = self.draw(0, min(FIRST_LOOK, len(self.learned)))
        self.network = build_image_inverter(settings, given.shape[1], wanted.shape[1], seed).to(model.device)
        self.network.fit(given, wanted)
        decides = (model.fingerprint, settings.model_dump_json(), *map(str, defenses), auxiliary.digest, seed)
        self.identity = " ".join(map(str, decides))

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of what a client sends."""
        parameters = self.model.parameters()
        return {name: tuple(parameters[name].shape) for name in self.names}

    def draw(self, step: int, count: int) -> Example:
        pixels, labels = self._images
        epoch, first = divmod(step * count, len(pixels))
        orders = [
            _order(len(pixels), derive_seed(self.seed, "order", epoch + i)) for i in range(2 + count // len(pixels))
        ]
        chosen = torch.cat(orders)[first : first + count].to(pixels.device)
        generator = torch.Generator().manual_seed(derive_seed(self.seed, "step", step))
        images = pixels[chosen]
        if self.settings.mirror:
            turned = torch.rand(len(images), 1, 1, 1, generator=generator) < 0.5
            images = torch.where(turned.to(images.device), images.flip(-1), images)
        return self._example(images, labels[chosen], generator)

    def everything(self) -> list[Example]:
        """All that can be learned from once, mirrored images too, in pieces."""
        pixels, labels = self._images
        generator = torch.Generator().manual_seed(derive_seed(self.seed, "everything"))
        turns = [pixels, pixels.flip(-1)] if self.settings.mirror else [pixels]
        return [
            self._example(images, classes, generator)
            for one in turns
            for images, classes in zip(one.split(FIRST_LOOK), labels.split(FIRST_LOOK), strict=True)
        ]

    def held_out(self) -> list[Example]:
        generator = torch.Generator().manual_seed(derive_seed(self.seed, "held out noise"))
        labels = torch.tensor(self.others.labels, device=self.model.device)
        return [self._example(self.others.values(self.model.device), labels, generator)]

    def loss(self, found: Tensor, wanted: Tensor) -> Tensor:
        return F.mse_loss(found, wanted)

    def _example(self, images: Tensor, labels: Tensor, generator: torch.Generator) -> Example:
        with torch.no_grad():
            rows = batch_gradients(self.model, self.names, images[:, None], labels[:, None])
            defended = defend(_named(rows, self.shapes), self.defenses, self.model, generator)
        return image_features(defended, self.model.head, self.settings.features), images.flatten(1)


def _named(rows: Tensor, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    pieces = rows.split([math.prod(shape) for shape in shapes.values()], dim=1)
    return {name: piece.reshape(-1, *shape) for piece, (name, shape) in zip(pieces, shapes.items(), strict=True)}


def _order(count: int, seed: int) -> Tensor:
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))
