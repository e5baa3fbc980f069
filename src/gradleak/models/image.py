"""An image classifier under audit, as both sides use it."""

from __future__ import annotations

import copy
import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradleak.core.errors import GradleakError
from gradleak.core.identity import digest
from gradleak.core.privacy import private
from gradleak.models.base import Target
from gradleak.models.loading import Loading
from gradleak.models.tasks import Label

if TYPE_CHECKING:
    from gradleak.updates.manifest import Known


@dataclass(frozen=True)
class ImageBatch:
    """Images as the model takes them: (batch, channels, height, width), from 0 to 1."""

    pixels: Tensor

    def __len__(self) -> int:
        return len(self.pixels)

    def part(self, which: slice) -> ImageBatch:
        return ImageBatch(self.pixels[which])


class ImageModel(Target):
    """A torch module that gives class logits for images with values from 0 to 1.

    Normalisation belongs into the module. The last linear layer is taken to be the one that gives the class logits.

    >>> from gradleak import load_model
    >>> model = load_model("lenet:seed=3")
    >>> model.shape, model.num_labels, model.name
    ((3, 32, 32), 10, 'lenet:seed=3')
    """

    task = "image-classification"
    modality = "images"
    examples = "images"

    def __init__(self, module: nn.Module, shape: tuple[int, int, int], name: str) -> None:
        self.module: Any = module.float().eval()
        self.shape = shape
        self.name = name
        self.head = _last_linear(module)

    def identity(self) -> str:
        return digest({"weights": self.fingerprint, "layers": repr(self.module), "shape": self.shape})[:32]

    def copied(self) -> ImageModel:
        copied = ImageModel(copy.deepcopy(self.module), self.shape, self.name)
        copied.module.train(self.module.training)
        return copied

    @property
    def family(self) -> str:
        return type(self.module).__name__.lower()

    @property
    def num_labels(self) -> int:
        return int(self.module.get_submodule(self.head).out_features)

    @functools.cached_property
    def layers(self) -> list[nn.Module]:
        """The modules that have parameters of their own, in order."""
        return [part for part in self.module.modules() if any(True for _ in part.parameters(recurse=False))]

    @property
    def sections(self) -> dict[str, list[nn.Module]]:
        return {"head": [self.module.get_submodule(self.head)]}

    def layer_tensors(self, number: int) -> dict[str, list[str]]:
        names = {id(parameter): name for name, parameter in self.module.named_parameters()}
        layer = self.layers[number - 1]
        return {role: [names[id(parameter)]] for role, parameter in layer.named_parameters(recurse=False)}

    def layer_parameters(self, number: int) -> list[str]:
        """The parameters of the module itself: modules inside it that have parameters are layers of their own."""
        inside = {name for names in self.layer_tensors(number).values() for name in names}
        return [name for name in self.parameters() if name in inside]

    def logits(self, pixels: Tensor) -> Tensor:
        logits: Tensor = self.module(pixels.to(next(self.module.parameters()).dtype))
        return logits

    def batch_loss(self, batch: ImageBatch, targets: Tensor) -> Tensor:
        return F.cross_entropy(self.logits(batch.pixels), targets)

    def example_losses(self, batch: ImageBatch, targets: Tensor) -> Tensor:
        return F.cross_entropy(self.logits(batch.pixels), targets, reduction="none")

    def check_known(self, known: Known) -> None:
        if known.lengths is not None:
            raise GradleakError("the manifest gives lengths, which images do not have")
        self.check_labels(known.labels or ())

    def check_labels(self, labels: tuple[Label, ...]) -> None:
        """Refuse classes the model does not have."""
        unknown = [label for label in labels if not (isinstance(label, int) and 0 <= label < self.num_labels)]
        if unknown:
            raise GradleakError(
                f"label {private(str(unknown[0]))} is out of range: {self.name} has {self.num_labels} classes"
            )

    def check_shape(self, shape: tuple[int, ...]) -> None:
        """Refuse images the model does not take."""
        if shape != self.shape:
            raise GradleakError(f"the images are {_sizes(shape)}, {self.name} takes {_sizes(self.shape)}")


def load_module(module: nn.Module, shape: tuple[int, int, int] | None, how: Loading) -> ImageModel:
    """A torch module of the user's own that reads images of this shape."""
    name = type(module).__name__.lower()
    how.refuse_text_settings(name)
    if shape is None:
        raise GradleakError("a torch module needs the shape of its images: load_model(module, shape=(3, 32, 32))")
    model = ImageModel(module.to(how.device), shape, name)
    _check_output(model)
    return model


def _check_output(model: ImageModel) -> None:
    try:
        with torch.no_grad():
            logits = model.logits(torch.zeros(2, *model.shape, device=model.device))
    except RuntimeError as error:
        raise GradleakError(f"{model.name} does not take images of {_sizes(model.shape)}: {error}") from error
    if tuple(logits.shape) != (2, model.num_labels):
        raise GradleakError(f"{model.name} gives {_sizes(tuple(logits.shape))} for two images, not class logits")


def _last_linear(module: nn.Module) -> str:
    names = [name for name, part in module.named_modules() if isinstance(part, nn.Linear)]
    if not names:
        raise GradleakError(f"{type(module).__name__} has no linear layer that could give class logits")
    return names[-1]


def _sizes(shape: tuple[int, ...]) -> str:
    return " × ".join(str(n) for n in shape)
