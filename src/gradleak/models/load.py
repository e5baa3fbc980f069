"""Loading a target: a built-in name, a Hugging Face folder, a hub id, or a model object."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from gradleak.core import assets
from gradleak.core.errors import GradleakError
from gradleak.core.files import output_folder
from gradleak.core.progress import SILENT, Progress
from gradleak.core.registry import suggest
from gradleak.models.drawn import DRAWN, is_drawn, load_drawn
from gradleak.models.families import Task, family_of
from gradleak.models.hub import reachable
from gradleak.models.lenet import is_image_model
from gradleak.models.tasks import Modality
from gradleak.models.text import TextModel

# Built-in names: the asset that holds the weights, and the task it is audited on unless told otherwise.
BUILT_IN: dict[str, Task] = {"minilm": "classification", "smollm2": "causal-lm"}
IMAGE_WAYS = "`gradleak audit`, `capture`, `attack`, `score` and `reproduce` take images, and `load_image_model`"


def modality_of_source(source: str) -> Modality:
    return "images" if is_image_model(source) else "text"


def load_model(source: Any, **settings: Any) -> Any:
    if isinstance(source, str) and is_image_model(source):
        from gradleak.models.image import load_image_model

        return load_image_model(source, device=settings.get("device", "cpu"))
    return load_text_model(source, **settings)


def load_text_model(
    source: Any,
    *,
    tokenizer: Any = None,
    task: Task | None = None,
    num_labels: int | None = None,
    head_seed: int = 0,
    device: str = "cpu",
    progress: Progress = SILENT,
) -> TextModel:
    """Load the model to audit.

    `source` is a built-in name ("minilm"), a Hugging Face folder or hub id, or a `PreTrainedModel`, which
    needs its `tokenizer` beside it. `task` is "classification" or "causal-lm"; by default encoders classify
    and decoders model language, unless the checkpoint says otherwise. Parameters the checkpoint does not
    hold (a new classification head) are drawn from `head_seed`, the same on every machine.

    >>> model = load_model("minilm")
    >>> model.task, model.num_labels, len(model.adapter.layers)
    ('classification', 2, 6)
    >>> model.decode(model.encode(["The results are back."]).sentences()[0])
    'the results are back.'
    """
    place = resolve_device(device)
    if not isinstance(source, str | Path):
        return _from_object(source, tokenizer, task, place)
    name = str(source)
    if is_image_model(name):
        raise GradleakError(f"{name} reads images, and a text model is wanted here; {IMAGE_WAYS}")
    if is_drawn(name):
        return load_drawn(name, task, place, progress)
    try:
        adapted = (Path(name) / "adapter_config.json").is_file()
    except OSError as error:
        raise GradleakError(f"there cannot be a model at {name}: {error.strerror}") from error
    if adapted:
        return _adapted(Path(name), task, num_labels, head_seed, device, progress)
    folder = str(_built_in(name, progress)) if name in BUILT_IN else name
    with quiet():
        config = _config(name, folder)
        chosen = task or BUILT_IN.get(name) or _default_task(config)
        family = family_of(config.model_type)
        if chosen not in family.tasks:
            raise GradleakError(f"{family.name} models are supported for {', '.join(family.tasks)}, not {chosen}")
        module, loaded_tokenizer = _weights(name, folder, config, chosen, num_labels, head_seed)
    if chosen == "classification" and module.config.num_labels < 2:
        raise GradleakError(f"{name} has one output; a classifier needs two classes or more (--num-labels)")
    return TextModel(module.to(place), tokenizer or loaded_tokenizer, chosen, name)


def save_model(module: Any, tokenizer: Any, folder: Path) -> Path:
    """Write a Hugging Face folder that `load_model` takes."""
    with output_folder(folder), quiet():
        module.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return folder


def _adapted(
    folder: Path, task: Task | None, num_labels: int | None, head_seed: int, device: str, progress: Progress
) -> TextModel:
    """A model with trained or fresh peft adapters: only they are trained and sent."""
    try:
        from peft import PeftConfig, PeftModel
    except ImportError as error:
        raise GradleakError("adapters need the peft library: pip install 'gradleak[lora]'") from error
    with _reading(str(folder)):
        base = PeftConfig.from_pretrained(str(folder)).base_model_name_or_path
    if not base:
        raise GradleakError(f"the adapter in {folder} does not say which model it is for (base_model_name_or_path)")
    below = load_model(base, task=task, num_labels=num_labels, head_seed=head_seed, device=device, progress=progress)
    with quiet(), _reading(str(folder)):
        wrapped = PeftModel.from_pretrained(below.module, str(folder), is_trainable=True)
    return TextModel(wrapped.get_base_model().float(), below.tokenizer, below.task, str(folder))


def _built_in(name: str, progress: Progress) -> Path:
    """The folder of a built-in model, fetched and converted first if it must be."""
    folder = assets.pull(name, progress)
    packed = next((file for file in assets.find(name).files if file.name.endswith(".gguf")), None)
    if packed is None:
        return folder
    from gradleak.models.gguf import converted

    with quiet():
        return converted(name, folder / packed.name, packed.sha256, progress)


def resolve_device(name: str) -> torch.device:
    """A torch device that exists here, or a clear error."""
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise GradleakError(f"device {name!r} cannot be used here: {str(error).splitlines()[0]}") from error
    return device


def _from_object(module: Any, tokenizer: Any, task: Task | None, device: torch.device) -> TextModel:
    if hasattr(module, "peft_config"):
        module = module.get_base_model()  # the model itself, with the adapters in its layers
    if not hasattr(module, "config") or not hasattr(module, "base_model"):
        raise GradleakError(f"{type(module).__name__} is not a Hugging Face model")
    if tokenizer is None:
        raise GradleakError("a model object needs its tokenizer: load_model(model, tokenizer=...)")
    if getattr(module.config, "_attn_implementation", "eager") != "eager":
        # The default fused attention has no second derivative on CPU.
        module.set_attn_implementation("eager")
    chosen: Task = task or task_of(module)
    return TextModel(module.float().to(device), tokenizer, chosen, module.config.name_or_path or "model object")


def _config(name: str, folder: str) -> Any:
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
            f"unknown model {name!r}: not built in, not a folder, and {why}; {suggest(name, [*BUILT_IN, *DRAWN])}"
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
    with _reading(name):
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
    """What a Hugging Face model is for: what its class says, or its configuration."""
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
def _reading(name: str) -> Iterator[None]:
    """Say in one line what is wrong with a model's files; the libraries that read them raise errors of any kind."""
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
    """Keep the library's reports and bars off the terminal; our errors say what matters."""
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
