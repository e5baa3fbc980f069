"""Image classifiers of Hugging Face's transformers: any `...ForImageClassification`, as folders and as objects."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict

from gradleak.core.errors import GradleakError
from gradleak.core.parameters import validated
from gradleak.core.reading import read_json_table
from gradleak.models.build import (
    FEW_LAYERS,
    check_classes,
    check_sizes,
    in_base,
    library_config,
    loaded,
    refuse_inside,
)
from gradleak.models.checkpoint import MAX_CONFIG, Checkpoint
from gradleak.models.families import FAMILIES
from gradleak.models.image import ImageModel, Normalisation, checked
from gradleak.models.loading import Loading
from gradleak.models.origin import Origin

PROCESSOR = "preprocessor_config.json"
# Where nothing says how large the images are, as with ResNets: what image models are usually trained with.
USUAL_SIDE = 224
MOST_SIDE, MOST_CHANNELS = 2048, 64
# What an image processor multiplies bytes with; pixels from 0 to 1 are just that.
TO_UNIT = 1 / 255
UNKNOWN = "Nothing says how its images are normalised: pixels from 0 to 1 reach its first layer as they are."


class Processor(BaseModel):
    """The entries of a preprocessor_config.json that decide what a model sees of an image."""

    model_config = ConfigDict(extra="allow", frozen=True, allow_inf_nan=False)

    do_normalize: bool | None = None
    image_mean: float | list[float] | None = None
    image_std: float | list[float] | None = None
    do_rescale: bool | None = None
    rescale_factor: float | None = None
    do_flip_channel_order: bool | None = None
    do_center_crop: bool | None = None
    size: int | list[int] | dict[str, Any] | None = None
    crop_size: int | list[int] | dict[str, Any] | None = None

    def normalisation(self, channels: int) -> Normalisation | None:
        """What it does to pixels from 0 to 1, channel by channel; None if nothing is known of it."""
        if self.do_flip_channel_order:
            raise GradleakError(f"{PROCESSOR}: do_flip_channel_order is not supported: images are red, green, blue")
        factor = 1.0 if self.do_rescale is not False else 255.0
        if self.rescale_factor is not None and self.do_rescale is not False:
            factor = self.rescale_factor / TO_UNIT
        mean, std = _channels(self.image_mean, channels), _channels(self.image_std, channels)
        if self.do_normalize is False:
            mean, std = (0.0,) * channels, (1.0,) * channels
        if mean is None or std is None:
            return None
        if not factor or not all(std):
            raise GradleakError(f"{PROCESSOR}: images cannot be divided by an image_std or rescale_factor of 0")
        return Normalisation(tuple(m / factor for m in mean), tuple(s / factor for s in std))

    def side(self) -> tuple[int, int] | None:
        """The height and width of what reaches the model."""
        return _sides(self.crop_size if self.do_center_crop and self.crop_size else self.size)


def classifier_of(model_type: str) -> str | None:
    """The class of transformers that classifies images by a model of this type; None where models read text."""
    if model_type in FAMILIES:  # before what takes seconds to import
        return None
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES as KINDS

    kinds = KINDS.get(model_type)
    return kinds[0] if isinstance(kinds, tuple) else kinds  # of several the first is the one that is trained


def reads_images(model_type: str) -> bool:
    """Whether models of a `model_type` are image classifiers.

    >>> reads_images("vit"), reads_images("bert"), reads_images("")
    (True, False, False)
    """
    return classifier_of(model_type) is not None


def load_image_files(name: str, checkpoint: Checkpoint, how: Loading) -> ImageModel:
    """The classifier of a folder; a head that it lacks, or with other classes, is drawn."""
    how.refuse_text_settings(name, own_classes=False)
    tensors = checkpoint.tensors(how.progress)
    _check_counts(checkpoint, len(tensors))
    check_classes(how.num_labels)
    config = library_config(checkpoint, how.num_labels)
    outline = _outline(config)
    head = {each for each, _ in outline.named_parameters() if not in_base(outline, each)}
    check_sizes(checkpoint, outline, head, tensors)
    trained = any(each.endswith("ForImageClassification") for each in checkpoint.about.architectures or ())
    new = head if how.num_labels is not None or not trained else set()
    module, drawn, left_over = loaded(checkpoint, outline, config, tensors, new, how.head_seed)
    refuse_inside(checkpoint, module, left_over)
    module.config.problem_type = None  # one class an image
    processor = _read_processor(checkpoint.folder)
    return _model(module, name, processor, Origin(tuple(sorted(drawn)), how.head_seed), how)


def is_image_object(module: Any) -> bool:
    """Whether a model object of transformers reads pixels."""
    return getattr(module, "main_input_name", None) == "pixel_values"


def load_image_object(module: Any, name: str, how: Loading) -> ImageModel:
    """A model object of the user's; images are normalised as `processor` says, or the folder that it came from."""
    how.refuse_text_settings(name)
    if not type(module).__name__.endswith("ForImageClassification"):
        raise GradleakError(
            f"a {type(module).__name__} gives no classes; audited are models ...ForImageClassification"
        )
    folder = module.config.name_or_path
    processor = _read_processor(Path(folder)) if folder else None
    if how.processor is not None:
        processor = _processor(how.processor.to_dict(), "the image processor")
    return _model(module, name, processor, Origin(), how)


def _model(module: Any, name: str, processor: Processor | None, origin: Origin, how: Loading) -> ImageModel:
    shape = how.shape or _shape(module.config, processor)
    normalisation = None if processor is None else processor.normalisation(shape[0])
    if normalisation is None:
        origin = origin.with_remark(UNKNOWN)
    return checked(ImageModel(module.to(how.device), shape, name, normalisation, origin))


# --- what the files say ---------------------------------------------------------------------------------


def _read_processor(folder: Path) -> Processor | None:
    path = folder / PROCESSOR
    return _processor(read_json_table(path, MAX_CONFIG), str(path)) if path.is_file() else None


def _processor(values: Mapping[str, Any], what: str) -> Processor:
    return validated(Processor, dict(values), what)


def _channels(value: float | list[float] | None, channels: int) -> tuple[float, ...] | None:
    if value is None:
        return None
    several = (value,) * channels if isinstance(value, float | int) else tuple(value)
    if len(several) != channels:
        raise GradleakError(f"{PROCESSOR}: image_mean and image_std need a number for each of {channels} channels")
    return several


def _sides(size: object) -> tuple[int, int] | None:
    """Height and width, in one of the forms that configurations have them.

    >>> _sides(32), _sides([24, 32]), _sides({"height": 24, "width": 32}), _sides({"shortest_edge": 32}), _sides("x")
    ((32, 32), (24, 32), (24, 32), (32, 32), None)
    """
    if isinstance(size, Mapping):
        if "height" in size and "width" in size:
            return _sides([size["height"], size["width"]])
        return _sides(size.get("shortest_edge"))
    sides = [size, size] if type(size) is int else size
    if isinstance(sides, list | tuple) and len(sides) == 2 and all(type(side) is int for side in sides):
        return int(sides[0]), int(sides[1])
    return None


def _shape(config: Any, processor: Processor | None) -> tuple[int, int, int]:
    """Channels, height and width: as the architecture has them, else as the images are prepared."""
    own = _sides(getattr(config, "image_size", None))
    height, width = own or (processor and processor.side()) or (USUAL_SIDE, USUAL_SIDE)
    channels = getattr(config, "num_channels", 3)
    if not all(1 <= side <= MOST_SIDE for side in (height, width)) or not 1 <= channels <= MOST_CHANNELS:
        raise GradleakError(f"images of {channels} × {height} × {width} are not audited: sides end at {MOST_SIDE}")
    return channels, height, width


# --- before anything is built ---------------------------------------------------------------------------


def _check_counts(checkpoint: Checkpoint, tensors: int) -> None:
    """Layers are laid out one by one: refuse numbers of them that the weight files cannot hold."""
    for key in ("depths", "num_blocks", "layers", "layer_depths", "num_hidden_layers"):
        value = checkpoint.config.get(key, 1)
        counts = value if isinstance(value, list) else [value]
        if not all(type(count) is int and 0 <= count <= 1_000_000 for count in counts) or len(counts) > FEW_LAYERS:
            raise GradleakError(
                f"{checkpoint.folder / 'config.json'}: {key}: not numbers of layers: {str(value)[:40]}"
            )
        if math.fsum(counts) > max(FEW_LAYERS, tensors):
            raise GradleakError(
                f"the config.json in {checkpoint.folder} says {sum(counts):,} layers, its weight files hold "
                f"{tensors} tensors"
            )


def _outline(config: Any) -> Any:
    """The module without memory for its weights."""
    from transformers import AutoModelForImageClassification

    config.architectures = [classifier_of(config.model_type)]
    with torch.device("meta"):
        return AutoModelForImageClassification.from_config(
            config, attn_implementation="eager", trust_remote_code=False
        )
