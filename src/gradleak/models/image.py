"""An image classifier under audit, as both sides use it."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from gradleak.core.errors import GradleakError
from gradleak.core.identity import digest
from gradleak.core.privacy import private
from gradleak.models.base import Target, fingerprint_of
from gradleak.models.loading import Loading
from gradleak.models.origin import Origin
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


class Normalisation(NamedTuple):
    """What becomes of pixels from 0 to 1 before the first layer, with a number for each channel.

    >>> Normalisation((0.5,), (0.25,)).applied(torch.ones(1, 1, 1, 1)).item()
    2.0
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def applied(self, pixels: Tensor) -> Tensor:
        mean, std = (torch.tensor(each).to(pixels).reshape(-1, 1, 1) for each in self)
        return (pixels - mean) / std

    def undone(self, inputs: Tensor) -> Tensor:
        mean, std = (torch.tensor(each).to(inputs).reshape(-1, 1, 1) for each in self)
        return inputs * std + mean


class ImageModel(Target):
    """A torch module that gives class logits for images with values from 0 to 1.

    `normalisation` is done to the pixels before the module sees them. The layer that gives the class logits, the
    head, is found by running the module: it is the last linear layer or convolution with an output for each class.

    >>> from gradleak import load_model
    >>> model = load_model("lenet:seed=3")
    >>> model.shape, model.num_labels, model.name
    ((3, 32, 32), 10, 'lenet:seed=3')
    """

    task = "image-classification"
    modality = "images"
    examples = "images"

    def __init__(
        self,
        module: nn.Module,
        shape: tuple[int, int, int],
        name: str,
        normalisation: Normalisation | None = None,
        origin: Origin | None = None,
    ) -> None:
        self.module: Any = module.float().eval()
        self.shape = shape
        self.name = name
        self.normalisation = normalisation
        self.origin = origin or Origin()

    @property
    def notes(self) -> tuple[str, ...]:
        return self.origin.notes

    @functools.cached_property
    def fingerprint(self) -> str:
        """Of the weights and of what else the gradient depends on: running statistics of norms, normalisation."""
        counted = {name: buffer for name, buffer in self.module.named_buffers() if buffer.is_floating_point()}
        scale = dict(zip(("mean", "std"), map(torch.tensor, self.normalisation or ()), strict=False))
        return fingerprint_of({**dict(self.module.named_parameters()), **counted, **scale})

    def identity(self) -> str:
        return digest({"weights": self.fingerprint, "layers": repr(self.module), "shape": self.shape})[:32]

    def copied(self, frozen: bool = True) -> ImageModel:
        module = self._copied_module(frozen)
        copied = ImageModel(module, self.shape, self.name, self.normalisation, self.origin)
        copied.module.train(self.module.training)
        return copied

    @property
    def family(self) -> str:
        """The `model_type` of a Hugging Face model, else the name of the module's class."""
        config = getattr(self.module, "config", None)
        return str(getattr(config, "model_type", None) or type(self.module).__name__.lower())

    @property
    def num_labels(self) -> int:
        return len(self.module.get_submodule(self.head).weight)

    @functools.cached_property
    def head(self) -> str:
        """The name of the layer that gives the class logits; an error if the module does not give any."""
        called: list[str] = []
        with _noting(self.module, called):
            logits = self._logits_of_two()
        if logits.dim() != 2 or len(logits) != 2:
            raise GradleakError(f"{self.name} gives {_sizes(tuple(logits.shape))} for two images, not class logits")
        fitting = [name for name in called if len(self.module.get_submodule(name).weight) == logits.shape[1]]
        if not fitting:
            raise GradleakError(f"{self.name} has no linear layer or convolution that gives its class logits")
        return fitting[-1]

    @functools.cached_property
    def rectified(self) -> bool:
        """Whether what the head sees is never negative, as behind a ReLU or a sigmoid; tried on random images."""
        seen: list[Tensor] = []
        hook = self.module.get_submodule(self.head).register_forward_pre_hook(lambda _, given: seen.append(given[0]))
        try:
            self._logits_of_two(torch.rand(2, *self.shape, generator=torch.Generator().manual_seed(0)))
        finally:
            hook.remove()
        return bool(seen[-1].min() >= 0)

    def _logits_of_two(self, pixels: Tensor | None = None) -> Tensor:
        before = self.module.training
        self.module.eval()
        try:
            with torch.no_grad():
                return self.logits((torch.zeros(2, *self.shape) if pixels is None else pixels).to(self.device))
        except (RuntimeError, ValueError, TypeError) as error:
            why = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise GradleakError(f"{self.name} does not take images of {_sizes(self.shape)}: {why}") from error
        finally:
            self.module.train(before)

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

    def logits(self, pixels: Tensor, weights: Mapping[str, Tensor] | None = None) -> Tensor:
        """The class logits of pixels from 0 to 1, by other weights and buffers than its own if there are any."""
        inputs = pixels.to(next(self.module.parameters()).dtype)
        if self.normalisation is not None:
            inputs = self.normalisation.applied(inputs)
        given = self.module(inputs) if weights is None else functional_call(self.module, dict(weights), (inputs,))
        logits: Tensor = getattr(given, "logits", given)  # models of libraries give more than the logits
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


def load_module(module: nn.Module, how: Loading) -> ImageModel:
    """A torch module of the user's own that reads images of a shape that must be given."""
    name = type(module).__name__.lower()
    how.refuse_text_settings(name)
    if how.shape is None:
        raise GradleakError("a torch module needs the shape of its images: load_model(module, shape=(3, 32, 32))")
    return checked(ImageModel(module.to(how.device), how.shape, name))


def checked(model: ImageModel) -> ImageModel:
    """The model, once it has computed."""
    if not any(isinstance(part, _LAYERS) for part in model.module.modules()):
        raise GradleakError(f"{model.name} has no linear layer or convolution that could give class logits")
    if model.num_labels < 2:
        raise GradleakError(f"{model.name} has one output; a classifier needs two classes or more")
    return model


_LAYERS = (nn.Linear, nn.Conv2d)


@contextlib.contextmanager
def _noting(module: nn.Module, called: list[str]) -> Iterator[None]:
    """List the names of linear layers and convolutions in the order in which they compute."""

    def note(name: str) -> Callable[..., None]:
        return lambda *_: called.append(name)

    layers = [(name, part) for name, part in module.named_modules() if isinstance(part, _LAYERS)]
    hooks = [part.register_forward_hook(note(name)) for name, part in layers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _sizes(shape: tuple[int, ...]) -> str:
    return " × ".join(str(n) for n in shape)
