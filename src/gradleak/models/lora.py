"""Folders of LoRA adapters: a base model with trained or fresh factors; only they are trained and sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict
from torch import Tensor

from gradleak.core.errors import GradleakError
from gradleak.core.foreign import read_foreign
from gradleak.core.parameters import validated
from gradleak.core.progress import Progress
from gradleak.core.reading import read_json_table
from gradleak.core.tensor_files import quoted, read_tensors
from gradleak.core.text import enumerated
from gradleak.models.adapter_names import ADAPTER, plain_name, spellings
from gradleak.models.base import Target
from gradleak.models.checkpoint import MAX_CONFIG, check_files, weight_files
from gradleak.models.families import Task
from gradleak.models.huggingface import checked, reading
from gradleak.models.loading import Loading
from gradleak.models.quiet import quiet
from gradleak.models.stored import trained_in_fp32
from gradleak.models.tasks import text_tasks
from gradleak.models.text import TextModel

CONFIG, WEIGHTS = "adapter_config.json", ("adapter_model.safetensors", "adapter_model.bin")
# What the library puts before names, and where we put a base without a name.
PREFIX, OWN_BASE = "base_model.model.", "base"


class AdapterFile(BaseModel):
    """The entries of an adapter_config.json that are looked at before the library sees it."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)

    peft_type: str
    base_model_name_or_path: str | None = None
    task_type: str | None = None
    r: int = 8
    rank_pattern: dict[str, int] | None = None
    megatron_config: None = None


def is_adapter(folder: str) -> bool:
    """Whether a folder holds adapters and not a whole model."""
    try:
        return (Path(folder) / CONFIG).exists()
    except (OSError, ValueError) as error:
        raise GradleakError(f"there cannot be a model at {folder}: {getattr(error, 'strerror', error)}") from error


def peft_library() -> Any:
    """The library of adapters, which not everyone has."""
    try:
        import peft
    except ImportError as error:
        raise GradleakError("adapters need the peft library: pip install 'gradleak[lora]'") from error
    return peft


def load_adapted(folder: str, how: Loading, load: Callable[[str, Loading], Target]) -> TextModel:
    """The base model, which `load` reads, with the adapters of a folder."""
    place = Path(folder)
    check_files(place)
    about = _about(place, _settings(place))
    base = _base(place, about)
    below = load(base, replace(how, task=how.task or _task(place, about), adapted=True))
    if not isinstance(below, TextModel):
        raise GradleakError(f"the adapter in {folder} is for {base}, which is no text model")
    return adapted(below, place, _tensors(place, how.progress))


def adapted(below: TextModel, place: Path, tensors: Mapping[str, Tensor]) -> TextModel:
    """The base model with adapters that have these weights and the settings in `place`; they go into its module."""
    peft = peft_library()
    settings = _settings(place)
    about = _about(place, settings)
    _check_ranks(place, about, tensors)
    with quiet(), reading(str(place)):
        known = _known(peft.LoraConfig, settings) | {
            "base_model_name_or_path": None
        }  # the library warns of another one
        wrapped: Any = peft.get_peft_model(below.module, peft.LoraConfig(**known))
        wrapped.peft_config[ADAPTER].base_model_name_or_path = below.name  # where the base really comes from
        trained = {name for name, parameter in wrapped.named_parameters() if parameter.requires_grad}
        tensors = _as_the_library_names(wrapped, tensors)
        _check_shapes(place, wrapped, tensors)
        result: Any = peft.set_peft_model_state_dict(wrapped, tensors)
        lacking = sorted(trained & set(result.missing_keys))
        if lacking or result.unexpected_keys:
            first, why = (
                (lacking or result.unexpected_keys)[0],
                "not in its weight files" if lacking else "no part of it",
            )
            raise GradleakError(f"the adapter in {place} does not fit its model: {quoted(first)} is {why}")
        # A head that came with the adapter is not new.
        brought = tuple(f".{name.removeprefix(PREFIX)}" for name in tensors)
        drawn = tuple(name for name in below.origin.drawn if not f".{name}".endswith(brought))
        module = trained_in_fp32(wrapped.get_base_model())
        origin = replace(below.origin, drawn=drawn)
        return checked(TextModel(module, below.tokenizer, below.task, str(place), origin))


def _settings(place: Path) -> dict[str, Any]:
    return read_json_table(place / CONFIG, MAX_CONFIG)


def _about(place: Path, settings: Mapping[str, Any]) -> AdapterFile:
    about = validated(AdapterFile, settings, str(place / CONFIG))
    if about.peft_type != "LORA":
        raise GradleakError(
            f"the adapter in {place} is of type {about.peft_type[:40]!r}; LoRA adapters are supported"
        )
    return about


def _as_the_library_names(wrapped: Any, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors under the names that peft saves them by, where they are other spellings of these."""
    from peft import get_peft_model_state_dict

    names = {plain_name(name): name for name in get_peft_model_state_dict(wrapped, save_embedding_layers=False)}
    renamed: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        full = name if name.startswith(PREFIX) else PREFIX + name
        known = names.get(plain_name(full)) or next((names[each] for each in spellings(full) if each in names), name)
        if known in renamed:
            raise GradleakError(f"the adapter's weights hold {quoted(known)} twice")
        renamed[known] = tensor
    return renamed


def _check_shapes(place: Path, wrapped: Any, tensors: Mapping[str, Tensor]) -> None:
    from peft import get_peft_model_state_dict

    for name, made in get_peft_model_state_dict(wrapped, save_embedding_layers=False).items():
        if name not in tensors:
            raise GradleakError(
                f"the adapter in {place} does not fit its model: {quoted(name)} is not in its weight files"
            )
        if tensors[name].shape != made.shape:
            raise GradleakError(
                f"the adapter in {place} does not fit its model: {quoted(name)} has shape "
                f"{list(tensors[name].shape)}, the model needs {list(made.shape)}; is it for another base, or rank?"
            )


def _base(place: Path, about: AdapterFile) -> str:
    base = about.base_model_name_or_path
    if not base:
        raise GradleakError(f"the adapter in {place} does not say which model it is for (base_model_name_or_path)")
    if base == f"./{OWN_BASE}" and (place / OWN_BASE).is_dir():
        return str(place / OWN_BASE)
    if is_adapter(base):
        raise GradleakError(f"the adapter in {place} is for {base}, which is an adapter too, not a model")
    return base


def _task(place: Path, about: AdapterFile) -> Task | None:
    asked = about.task_type
    known = {each: task.name for task in reversed(text_tasks()) if (each := task.adapter_type)}
    if asked is not None and asked not in known:
        raise GradleakError(f"the adapter in {place} is for {asked[:40]}; {enumerated(sorted(known))} are audited")
    return known[asked] if asked is not None else None


def _tensors(place: Path, progress: Progress) -> dict[str, Tensor]:
    files = weight_files(place, WEIGHTS)
    parts = (
        [read_tensors(file) for file in files] if files[0].suffix == ".safetensors" else read_foreign(files, progress)
    )
    return {name: tensor for part in parts for name, tensor in part.items()}


def _check_ranks(place: Path, about: AdapterFile, tensors: Mapping[str, Tensor]) -> None:
    """Before the library makes room for the factors: no rank is above the sides of those that are there."""
    most = max(size for tensor in tensors.values() for size in (*tensor.shape, 1))
    for rank in (about.r, *(about.rank_pattern or {}).values()):
        if not 1 <= rank <= most:
            raise GradleakError(
                f"{place / CONFIG}: r: the rank cannot be {rank:,}; its weights have at most {most:,}"
            )


def _known(kind: type, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that this version of the library has; those of a newer one are left out, as it does itself."""
    from dataclasses import fields

    names = {field.name for field in fields(kind) if field.init} - {"peft_type", "auto_mapping", "inference_mode"}
    return {name: value for name, value in settings.items() if name in names}
