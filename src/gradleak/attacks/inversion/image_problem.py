"""Image inverters learn from auxiliary images and the gradients these give, defended as the victims' are."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from gradleak.attacks.inversion.defended import check_learnable, defend
from gradleak.attacks.inversion.image_features import image_features
from gradleak.attacks.inversion.image_networks import ImageNetworkSettings, build_image_inverter
from gradleak.attacks.inversion.ridge import Rescaled
from gradleak.attacks.inversion.training import Example, Problem
from gradleak.core.errors import GradleakError
from gradleak.core.memory import free_memory
from gradleak.core.seeds import derive_seed
from gradleak.data.pictures import Pictures
from gradleak.defenses.base import Defense
from gradleak.models.image import ImageModel
from gradleak.models.image_gradients import batch_gradients, reached

# Pictures that are never learned from: so many, or this share of all if that is more, but never more than that one.
HELD_OUT, LEAST_HELD, MOST_HELD = 256, 0.02, 0.2
# Examples from which the typical size of every coordinate is taken.
FIRST_LOOK = 512
# Weights, their gradient, two means of Adam, and the best so far.
COPIES = 5


class ImageProblem(Problem):
    """Gradients of single auxiliary images, defended as the victims' are; the network must find the pixels.

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
        training: bool = False,
    ) -> None:
        """`training` is whether clients train in that mode: batch norms then use the statistics of the image."""
        check_learnable(defenses)
        self.training = training
        self.model, self.defenses, self.settings, self.seed = model, defenses, settings, seed
        self.names = reached(model)
        for defense in defenses:
            self.names = defense.trained(self.names, model)
        held = min(max(HELD_OUT, int(LEAST_HELD * len(auxiliary))), int(MOST_HELD * len(auxiliary)))
        if not held:
            raise GradleakError(f"{len(auxiliary)} auxiliary images are too few to learn from and to check with")
        order = _order(len(auxiliary), derive_seed(seed, "held out")).tolist()
        self.learned, self.others = auxiliary.some(order[held:]), auxiliary.some(order[:held])
        self._check_room()
        self._images = self.learned.values(model.device), torch.tensor(self.learned.labels, device=model.device)
        given, wanted = self.draw(0, min(FIRST_LOOK, len(self.learned)))
        self.network = build_image_inverter(settings, given.shape[1], wanted.shape[1], seed).to(model.device)
        self.network.fit(given, wanted)
        decides = (
            model.fingerprint,
            settings.model_dump_json(),
            *map(str, defenses),
            auxiliary.digest,
            seed,
            training,
        )
        self.identity = " ".join(map(str, decides))

    def _check_room(self) -> None:
        """Refuse a network, or gradients to learn from, that do not fit into memory."""
        inputs, pixels = sum(map(math.prod, self.shapes.values())), math.prod(self.model.shape)
        linear, hidden = self.settings.layers == "linear", self.settings.hidden
        weights = inputs * pixels if linear else COPIES * (inputs * hidden + hidden * hidden + hidden * pixels)
        # The linear network holds all examples, or, if these are more, products of all features.
        rows = min(self.rows, inputs) if linear else min(FIRST_LOOK, len(self.learned))
        needed, free = 4 * (weights + 2 * rows * inputs), free_memory(self.model.device)
        if needed > free:
            raise GradleakError(
                f"lti needs about {needed / 1e9:,.1f} GB of memory to learn to read the {inputs:,} numbers of an "
                f"update of {self.model.name}; {free / 1e9:,.1f} GB are free"
            )

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

    @property
    def rows(self) -> int:
        """Examples of `everything`."""
        return len(self.learned) * (1 + self.settings.mirror)

    def everything(self) -> Iterator[Example]:
        """All auxiliary images to learn from, mirrored images too, in pieces."""
        pixels, labels = self._images
        generator = torch.Generator().manual_seed(derive_seed(self.seed, "everything"))
        turns = [pixels, pixels.flip(-1)] if self.settings.mirror else [pixels]
        for turned in turns:
            for images, classes in zip(turned.split(FIRST_LOOK), labels.split(FIRST_LOOK), strict=True):
                yield self._example(images, classes, generator)

    def held_out(self) -> list[Example]:
        generator = torch.Generator().manual_seed(derive_seed(self.seed, "held out noise"))
        labels = torch.tensor(self.others.labels, device=self.model.device)
        return [self._example(self.others.values(self.model.device), labels, generator)]

    def loss(self, outputs: Tensor, wanted: Tensor) -> Tensor:
        return F.mse_loss(outputs, wanted)

    def _example(self, images: Tensor, labels: Tensor, generator: torch.Generator) -> Example:
        with torch.no_grad():
            rows = batch_gradients(self.model, self.names, images[:, None], labels[:, None], self.training)
            defended = defend(_named(rows, self.shapes), self.defenses, self.model, generator)
        return image_features(defended, self.model.head, self.settings.features), images.flatten(1)


def _named(rows: Tensor, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    pieces = rows.split([math.prod(shape) for shape in shapes.values()], dim=1)
    return {name: piece.reshape(-1, *shape) for piece, (name, shape) in zip(pieces, shapes.items(), strict=True)}


def _order(count: int, seed: int) -> Tensor:
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))
