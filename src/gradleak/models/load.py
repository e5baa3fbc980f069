"""Loading a target: a built-in name, a Hugging Face folder, a hub id, or a model object."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn

from gradleak.core import assets
from gradleak.core.errors import GradleakError
from gradleak.core.files import filling, write_text
from gradleak.core.parameters import split_parameters, validated
from gradleak.core.progress import SILENT, Progress
from gradleak.models.base import Target
from gradleak.models.families import FAMILIES, Family
from gradleak.models.fresh_lora import with_fresh_lora
from gradleak.models.huggingface import configured_type, is_hugging_face, load_files, load_object
from gradleak.models.image import ImageModel, load_module
from gradleak.models.image_files import reads_images
from gradleak.models.lenet import LENET
from gradleak.models.loading import BuiltIn, Loading, resolve_device
from gradleak.models.lora import OWN_BASE, is_adapter, load_adapted
from gradleak.models.lora_saving import save_adapter
from gradleak.models.lora_text import LoraSettings
from gradleak.models.lti import LTI
from gradleak.models.quiet import quiet
from gradleak.models.tasks import MODALITY_OF, Modality, Task
from gradleak.models.text import TextModel, text_target
from gradleak.models.vision_libraries import TIMM, TORCHVISION


def load_model(
    source: Any,
    *,
    tokenizer: Any = None,
    task: Task | None = None,
    num_labels: int | None = None,
    head_seed: int = 0,
    shape: tuple[int, int, int] | None = None,
    lora: LoraSettings | str | None = None,
    family: Family | str | None = None,
    processor: Any = None,
    name: str | None = None,
    device: str = "cpu",
    progress: Progress = SILENT,
) -> TextModel | ImageModel:
    """Load the model to audit.

    `source` is a built-in name ("minilm", "lenet:seed=3"), a Hugging Face folder or hub id, or a model object: a
    `PreTrainedModel`, which needs its `tokenizer` beside it if it reads text and may have its image `processor` if it
    reads images, or a torch module that gives class logits for images of `shape` (channels, height, width) with
    values from 0 to 1.

    `task` is one of docs/tasks.md; by default encoders classify and decoders model language, unless the checkpoint
    says otherwise. One that was trained for another objective is refused unless `task` is given. A head
    that the checkpoint does not hold is drawn from `head_seed`, the same on every machine, and `notes` says so;
    whatever else is missing is an error. `lora` puts fresh adapters on the model, such as "r=16,targets=query+value",
    and only they are trained. `family` is a declaration of your own of where the model keeps its parts, or
    "module:NAME" of one; types that are not listed need none if their parts can be found by structure. Results call
    the model by `name`, or as it was asked for.

    >>> model = load_model("minilm")
    >>> model.task, model.num_labels, model.layer_count
    ('classification', 2, 6)
    >>> model.decode(model.encode(["The results are back."]).sentences()[0])
    'the results are back.'
    >>> load_model("lenet:seed=3").shape
    (3, 32, 32)
    """
    adapters = LoraSettings.parse(lora) if isinstance(lora, str) else lora
    declared = FAMILIES.get(family) if isinstance(family, str) else family
    how = Loading(
        task, num_labels, head_seed, tokenizer, resolve_device(device), progress, adapters, declared, shape, processor
    )
    if isinstance(source, nn.Module) and not is_hugging_face(source):
        model: Target = load_module(source, how)
    else:
        progress.begin(f"loading {source if isinstance(source, str | Path) else type(source).__name__}", 0)
        model = _load(source, how)
        if adapters is not None:
            own = model if isinstance(source, str | Path) else model.copied()  # the user's object stays as it is
            model = with_fresh_lora(text_target(own, "lora"), adapters)
        progress.end()
    if name is not None:
        model.name = name
    assert isinstance(model, TextModel | ImageModel)
    return model


def load_text_model(source: Any, **how: Any) -> TextModel:
    """A model that must be of text; the keywords are those of `load_model`."""
    model = load_model(source, **how)
    if not isinstance(model, TextModel):
        raise GradleakError(f"{model.name} reads {model.examples}, and a text model is needed here")
    return model


def modality_of_source(source: str) -> Modality:
    """What a model reads, known from its name, or from the config.json of a folder or hub id, without loading it.

    >>> modality_of_source("lenet:seed=3"), modality_of_source("some/folder")
    ('images', 'text')
    """
    built_in = _built_in(source)
    if built_in is not None:
        return MODALITY_OF[built_in.task]
    return "images" if reads_images(configured_type(source)) else "text"


def save_model(
    module: Any,
    tokenizer: Any,
    folder: Path,
    beside: Mapping[str, str] | None = None,
    adapters: Mapping[str, Tensor] | None = None,
) -> Path:
    """Write a Hugging Face folder that `load_model` takes, readable by its owner only: all files of it, or none.

    `beside` are texts of further files by their names. Of a model with adapters only these are written, and the
    name of its base; `adapters` are weights, by name, that they shall have instead of their own.
    """
    with filling(folder) as scratch, quiet():
        try:
            if hasattr(module, "peft_config"):
                save_adapter(module, scratch, adapters)
            else:
                module.save_pretrained(scratch)
            for place in filter(Path.is_dir, (scratch, scratch / OWN_BASE)):
                tokenizer.save_pretrained(place)
        except Exception as error:  # the libraries that write raise any kind of error
            raise GradleakError(f"cannot write the model to {folder}: {' '.join(str(error).split())}") from error
        for name, text in (beside or {}).items():
            write_text(scratch / name, text)
    return folder


def _load(source: Any, how: Loading) -> Target:
    if not isinstance(source, str | Path):
        return load_object(source, how)
    name = str(source)
    built_in = _built_in(name)
    if built_in is not None:
        if how.shape is not None or how.processor is not None:
            raise GradleakError(f"'shape' is for a torch module or checkpoint of your own; {name} has its own")
        kind, values = split_parameters(name, modules=False)
        return built_in.load(name, validated(built_in.options, values, f"model {kind!r}"), how)
    if is_adapter(name):
        return load_adapted(name, how, _load)
    return load_files(name, name, how)


# --- built in ---------------------------------------------------------------------------------------


class NoValues(BaseModel):
    """A built-in name without settings."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def _of_asset(name: str, values: NoValues, how: Loading) -> TextModel | ImageModel:
    """A pinned checkpoint, fetched and converted first if it must be."""
    folder = assets.pull(name, how.progress)
    packed = next((file for file in assets.find(name).files if file.name.endswith(".gguf")), None)
    if packed is not None:
        from gradleak.models.gguf import converted

        with quiet():
            folder = converted(name, folder / packed.name, packed.sha256, how.progress)
    task = BUILT_IN[name].task
    assert task != "image-classification"
    return load_files(name, str(folder), how, default_task=task)


BUILT_IN: dict[str, BuiltIn] = {
    "minilm": BuiltIn("classification", assets.find("minilm").summary, NoValues, _of_asset),
    "mpnet": BuiltIn("classification", assets.find("mpnet").summary, NoValues, _of_asset),
    "smollm2": BuiltIn("causal-lm", assets.find("smollm2").summary, NoValues, _of_asset),
    "gemma3-270m": BuiltIn("causal-lm", assets.find("gemma3-270m").summary, NoValues, _of_asset),
    "lenet": LENET,
    "lti": LTI,
    "timm": TIMM,
    "torchvision": TORCHVISION,
}


def _built_in(source: str) -> BuiltIn | None:
    return BUILT_IN.get(source.partition(":")[0].strip())
