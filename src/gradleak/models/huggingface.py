"""Models in the form of the Hugging Face libraries: folders, hub ids, and objects."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from gradleak.core.errors import GradleakError
from gradleak.core.hub import download, download_config
from gradleak.core.model_names import unknown
from gradleak.core.reading import read_json_table
from gradleak.core.tensor_files import check_finite, quoted
from gradleak.models.build import built, family_for
from gradleak.models.checkpoint import MAX_CONFIG, open_checkpoint
from gradleak.models.discovery.choose import chosen_family, remark_on
from gradleak.models.families import Task
from gradleak.models.image import ImageModel
from gradleak.models.image_files import is_image_object, load_image_files, load_image_object, reads_images
from gradleak.models.loading import Loading
from gradleak.models.objective import objective, objective_of, task_of
from gradleak.models.origin import Origin
from gradleak.models.quiet import quiet
from gradleak.models.text import TextModel


def load_files(name: str, folder: str, how: Loading, *, default_task: Task | None = None) -> TextModel | ImageModel:
    """The model of a folder or hub id."""
    with quiet(), reading(name):
        checkpoint = open_checkpoint(_local(name, folder, how))
        about = checkpoint.about
        if reads_images(about.model_type):
            return load_image_files(name, checkpoint, how)
        how.refuse_image_settings(name)
        family = family_for(checkpoint, how)
        misnamed = bool(about.is_encoder_decoder) and family.kind != "encoder-decoder"
        trained = objective(about.architectures, about.problem_type, misnamed, about.classes)
        task = trained.choose(name, family, how.task or default_task)
        module, origin = built(checkpoint, family, task, trained, how)
        if remark := trained.remark(task):
            origin = origin.with_remark(remark)
        origin = origin.with_family(family, remark_on(family, how.family))
        tokenizer = how.tokenizer or _tokenizer(name, checkpoint.folder)
        model = TextModel(module.to(how.device), tokenizer, task, name, origin)
        return model if how.frozen else checked(model)  # with its adapters it is checked once they are on it


def configured_type(source: str) -> str:
    """The `model_type` that the config.json of a folder or hub id names; "" where loading will say what is wrong."""
    try:
        place = Path(source) if Path(source).is_dir() else download_config(source)
        named = None if place is None else read_json_table(place / "config.json", MAX_CONFIG).get("model_type")
    except (GradleakError, OSError, ValueError):
        return ""
    return named if isinstance(named, str) else ""


def is_hugging_face(module: Any) -> bool:
    """Whether an object is a model of theirs, with or without peft adapters."""
    return hasattr(module, "peft_config") or (hasattr(module, "config") and hasattr(module, "base_model"))


def load_object(module: Any, how: Loading) -> TextModel | ImageModel:
    """A model object of the user's."""
    if not is_hugging_face(module):
        raise GradleakError(f"{type(module).__name__} is not a Hugging Face model, nor a torch module")
    if hasattr(module, "get_base_model"):
        module = module.get_base_model()  # the model itself, with the adapters in its layers
    images = is_image_object(module)
    if how.tokenizer is None and not images:
        raise GradleakError("a model object needs its tokenizer: load_model(model, tokenizer=...)")
    name = module.config.name_or_path or "model object"
    for each, parameter in module.named_parameters():
        if not parameter.is_floating_point() or parameter.is_meta:
            what = "on the meta device, without values" if parameter.is_meta else f"quantised ({parameter.dtype})"
            raise GradleakError(f"{name}: tensor {quoted(each)} is {what}; load the model in full precision")
    check_finite(dict(module.named_parameters()))
    if getattr(module.config, "_attn_implementation", "eager") != "eager":
        # The default fused attention has no second derivative on CPU.
        module.set_attn_implementation("eager")
    if images:
        with reading(name):
            return load_image_object(module, name, how)
    how.refuse_image_settings(name)
    family = chosen_family(module.config, how.family)
    task = how.task or task_of(module, family)
    remark = objective_of(module).remark(task)
    origin = Origin(remarks=(remark,)) if remark else Origin()
    origin = origin.with_family(family, remark_on(family, how.family))
    with reading(name):
        return checked(TextModel(module.float().to(how.device), how.tokenizer, task, name, origin))


def checked(model: TextModel) -> TextModel:
    """The model, once it has computed: a configuration can be valid and still make no model."""
    outputs = model.goal.outputs(model)
    ids = torch.zeros(1, min(2, model.max_length), dtype=torch.long, device=model.device)
    with torch.no_grad():
        logits = model.logits(ids=ids, mask=torch.ones_like(ids, dtype=torch.bool))
    if logits.shape[0] != 1 or logits.shape[-1] != outputs:
        raise GradleakError(f"{model.name} gives logits of shape {list(logits.shape)}, which do not fit {model.task}")
    if not bool(torch.isfinite(logits).all()):
        raise GradleakError(f"{model.name} computes values that are not finite; is its config.json in order?")
    return model


def _local(name: str, folder: str, how: Loading) -> Path:
    """The folder itself, or the files of a hub id."""
    if Path(folder).is_dir():
        return Path(folder)
    how.progress.begin(f"looking for {name} on the hub", 1)
    try:
        return download(folder)
    except GradleakError as error:
        raise unknown(name, str(error)) from error
    finally:
        how.progress.end()


def _tokenizer(name: str, folder: Path) -> Any:
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
        words = len(tokenizer.get_vocab()) - len(set(tokenizer.all_special_tokens))
    except Exception as error:  # whatever the library finds wrong with the files
        raise GradleakError(f"cannot load the tokenizer of model {name!r}: {_first_line(error)}") from error
    if words <= 0:
        # Where there are no files, a tokenizer without words is made up: every text would become unknown tokens.
        raise GradleakError(
            f"model {name!r} has no tokenizer: save it beside the weights with tokenizer.save_pretrained"
        )
    return tokenizer


@contextlib.contextmanager
def reading(name: str) -> Iterator[None]:
    """Report in one line what is wrong with a model's files; the libraries that read them raise any kind of error."""
    try:
        yield
    except GradleakError:
        raise
    except Exception as error:
        raise GradleakError(f"cannot load model {name!r}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
