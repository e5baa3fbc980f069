"""Classifiers of torchvision and timm by name, where these are installed: `timm:model=resnet18,classes=10`."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field

from gradleak.core.errors import GradleakError
from gradleak.core.foreign import read_foreign
from gradleak.models.image import ImageModel, Normalisation, checked
from gradleak.models.loading import BuiltIn, Loading
from gradleak.models.origin import Origin

# What torchvision's own weights, and most of timm's, were trained with: the mean and spread of ImageNet's pixels.
IMAGENET = Normalisation((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


class LibraryOptions(BaseModel):
    """What a text such as `timm:model=vit_tiny_patch16_224,classes=10` can set."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    model: str = Field(pattern=r"^[a-z0-9_.]+$", max_length=100, description="the library's name of the architecture")
    classes: int = Field(10, ge=2, le=100_000)
    size: int = Field(224, ge=8, le=2048, description="pixels of an image's sides")
    seed: int = Field(0, ge=0, description="fixes the weights, if there is no file of them")
    weights: str | None = Field(None, description="a file of the model's state, such as model.safetensors")


def load_timm(name: str, options: LibraryOptions, how: Loading) -> ImageModel:
    library = _library("timm")
    if options.model not in library.list_models():
        raise GradleakError(f"timm has no model {options.model!r}")
    sized = {"img_size": options.size} if options.model.startswith(("vit", "deit", "beit", "swin", "mixer")) else {}
    module = _drawn(name, options, library.create_model, pretrained=False, num_classes=options.classes, **sized)
    about = module.pretrained_cfg
    return _loaded(name, options, module, Normalisation(tuple(about["mean"]), tuple(about["std"])), how)


def load_torchvision(name: str, options: LibraryOptions, how: Loading) -> ImageModel:
    library = _library("torchvision").models
    if options.model not in library.list_models(module=library):
        raise GradleakError(f"torchvision has no classifier {options.model!r}")
    sized = {"image_size": options.size} if options.model.startswith("vit") else {}
    module = _drawn(name, options, library.get_model, weights=None, num_classes=options.classes, **sized)
    return _loaded(name, options, module, IMAGENET, how)


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except Exception as error:  # one that is there may still not fit the torch beside it
        raise GradleakError(f"models of {name} need it installed: pip install {name} ({error})") from error


def _drawn(name: str, options: LibraryOptions, make: Any, **settings: Any) -> Any:
    """A module by its library's own initialisation, the same for the same seed and version."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(options.seed)
        try:
            key = "model_name" if "pretrained" in settings else "name"
            return make(**{key: options.model}, **settings)
        except Exception as error:  # whatever a library raises at a size or a number of classes it does not take
            raise GradleakError(f"{name} cannot be made: {' '.join(str(error).split())[:200]}") from error


def _loaded(
    name: str, options: LibraryOptions, module: Any, normalisation: Normalisation, how: Loading
) -> ImageModel:
    how.refuse_text_settings(name)
    origin = Origin(remarks=(f"Its weights are drawn from seed {options.seed}.",))
    if options.weights is not None:
        (state,) = read_foreign([Path(options.weights)], how.progress)
        own = {key for key, tensor in module.state_dict().items() if tensor.is_floating_point()}
        if odd := sorted(own ^ state.keys()):
            raise GradleakError(
                f"{options.weights} is not the state of {name}: {odd[0]!r} and {len(odd) - 1} more differ"
            )
        try:
            module.load_state_dict(state, strict=False)
        except RuntimeError as error:
            raise GradleakError(
                f"{options.weights} does not fit {name}: {str(error).splitlines()[-1].strip()}"
            ) from error
        origin = Origin()
    shape = (3, options.size, options.size)
    return checked(ImageModel(module.to(how.device), shape, name, normalisation, origin))


TIMM = BuiltIn(
    "image-classification",
    "a classifier of timm, which must be installed; timm:model=NAME,classes=10,size=224,seed=0,weights=FILE",
    LibraryOptions,
    load_timm,
)
TORCHVISION = BuiltIn(
    "image-classification",
    "a classifier of torchvision, which must be installed; torchvision:model=NAME,classes=10,size=224,weights=FILE",
    LibraryOptions,
    load_torchvision,
)
