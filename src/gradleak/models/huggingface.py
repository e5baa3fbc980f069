"""Models in the form of the Hugging Face libraries: folders, hub ids, and objects."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from gradleak.core.errors import GradleakError
from gradleak.core.hub import reachable
from gradleak.core.registry import suggest
from gradleak.models.families import Task, family_of
from gradleak.models.loading import Loading
from gradleak.models.text import TextModel


def load_files(
    name: str, folder: str, how: Loading, *, default_task: Task | None = None, known: Iterable[str] = ()
) -> TextModel:
    """The model of a folder or hub id; `known` are names to suggest where there is neither."""
    with quiet():
        config = _config(name, folder, known)
        task = how.task or default_task or _default_task(config)
        family = family_of(config.model_type)
        if task not in family.tasks:
            raise GradleakError(f"{family.name} models are supported for {', '.join(family.tasks)}, not {task}")
        module, tokenizer = _weights(name, folder, config, task, how.num_labels, how.head_seed)
    if task == "classification" and module.config.num_labels < 2:
        raise GradleakError(f"{name} has one output; a classifier needs two classes or more (--num-labels)")
    return TextModel(module.to(how.device), how.tokenizer or tokenizer, task, name)


def is_hugging_face(module: Any) -> bool:
    """Whether an object is a model of theirs, with or without peft adapters."""
    return hasattr(module, "peft_config") or (hasattr(module, "config") and hasattr(module, "base_model"))


def load_object(module: Any, how: Loading) -> TextModel:
    """A model object of the user's."""
    if not is_hugging_face(module):
        raise GradleakError(f"{type(module).__name__} is not a Hugging Face model, nor a torch module")
    if hasattr(module, "peft_config"):
        module = module.get_base_model()  # the model itself, with the adapters in its layers
    if how.tokenizer is None:
        raise GradleakError("a model object needs its tokenizer: load_model(model, tokenizer=...)")
    if getattr(module.config, "_attn_implementation", "eager") != "eager":
        # The default fused attention has no second derivative on CPU.
        module.set_attn_implementation("eager")
    name = module.config.name_or_path or "model object"
    return TextModel(module.float().to(how.device), how.tokenizer, how.task or task_of(module), name)


def _config(name: str, folder: str, known: Iterable[str]) -> Any:
    from transformers import AutoConfig

    if Path(folder).is_dir() and not (Path(folder) / "config.json").is_file():
        raise GradleakError(f"the folder {folder} holds no config.json, so it is not a Hugging Face model")
    try:
        return AutoConfig.from_pretrained(folder, local_files_only=Path(folder).is_dir() or not reachable())
    except Exception as error:  # whatever the library finds wrong with the file
        if Path(folder).is_dir():
            raise GradleakError(f"cannot read the model in {folder}: {_first_line(error)}") from error
        why = "the hub does not have it" if reachable() else "the hub cannot be reached"
        raise GradleakError(
            f"unknown model {name!r}: not built in, not a folder, and {why}; {suggest(name, known)}"
        ) from error


def _weights(
    name: str, folder: str, config: Any, task: Task, num_labels: int | None, head_seed: int
) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

    local = Path(folder).is_dir() or not reachable()
    extra: dict[str, Any] = {}
    if task == "classification" and num_labels is not None:
        extra = {"num_labels": num_labels}
    kind = AutoModelForSequenceClassification if task == "classification" else AutoModelForCausalLM
    with reading(name):
        module, info = kind.from_pretrained(
            folder,
            attn_implementation="eager",
            output_loading_info=True,
            local_files_only=local,
            ignore_mismatched_sizes=bool(extra),
            **extra,
        )
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=local)
    if len(tokenizer.get_vocab()) <= len(set(tokenizer.all_special_tokens)):
        # Where there are no files, a tokenizer without words is made up: every text would become unknown tokens.
        raise GradleakError(
            f"model {name!r} has no tokenizer: save it beside the weights with tokenizer.save_pretrained"
        )
    missing = set(info["missing_keys"]) | {key[0] for key in info.get("mismatched_keys", ())}
    _draw(module, missing, config, head_seed)
    return module.float(), tokenizer


def _draw(module: Any, missing: set[str], config: Any, seed: int) -> None:
    """Initialise parameters the checkpoint lacks: the same numbers for the same seed, whatever the version."""
    generator = torch.Generator().manual_seed(seed)
    scale = float(getattr(config, "initializer_range", 0.02))
    for name, parameter in sorted(module.named_parameters()):
        if name not in missing:
            continue
        with torch.no_grad():
            if parameter.dim() < 2:
                parameter.zero_()
            else:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)


def task_of(module: Any) -> Task:
    """The task of a Hugging Face model, by its class or its configuration."""
    return _task_of_class(type(module).__name__) or _default_task(module.config)


def _default_task(config: Any) -> Task:
    for architecture in getattr(config, "architectures", None) or ():
        if task := _task_of_class(architecture):
            return task
    return "classification" if family_of(config.model_type).kind == "encoder" else "causal-lm"


def _task_of_class(name: str) -> Task | None:
    if name.endswith("ForSequenceClassification"):
        return "classification"
    if name.endswith(("ForCausalLM", "LMHeadModel")):
        return "causal-lm"
    return None


@contextlib.contextmanager
def reading(name: str) -> Iterator[None]:
    """Report in one line what is wrong with a model's files; the libraries that read them raise any kind of error."""
    try:
        yield
    except Exception as error:
        why = _first_line(error)
        if "ignore_mismatched_sizes" in why:
            why = "its weights have other shapes than its config.json says"
        raise GradleakError(f"cannot load model {name!r}: {why}") from error


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep the library's reports and bars off the terminal; our errors have what matters."""
    from transformers.utils import logging as library

    level, bars = library.get_verbosity(), library.is_progress_bar_enabled()
    library.set_verbosity(logging.CRITICAL)
    library.disable_progress_bar()
    try:
        yield
    finally:
        library.set_verbosity(level)
        if bars:
            library.enable_progress_bar()
