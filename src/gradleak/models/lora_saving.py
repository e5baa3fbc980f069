"""Writing the adapters of a model: a folder that names the base, or holds it where it has no name."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from gradleak.core.files import fill_tensors
from gradleak.models.lora import OWN_BASE, PREFIX, WEIGHTS
from gradleak.models.objective import task_of
from gradleak.models.tasks import text_task


def save_adapter(module: Any, folder: Path, weights: Mapping[str, Tensor] | None = None) -> None:
    """Write the adapters of a model as a folder that `load_model` takes; `weights` replace those of these names.

    The base is named, not copied, if it can be loaded by its name; else it is written into the folder too.
    """
    from peft import get_peft_model_state_dict

    plain = module.get_base_model() if hasattr(module, "get_base_model") else module
    name = adapter_of(plain)
    state = {**plain.state_dict(), **(weights or {})}
    tensors = get_peft_model_state_dict(plain, state_dict=state, adapter_name=name, save_embedding_layers=False)
    config = copy.copy(plain.peft_config[name])
    config.base_model_name_or_path = _name_of_base(config.base_model_name_or_path or plain.config.name_or_path)
    if config.base_model_name_or_path is None:
        _without_adapters(plain).save_pretrained(folder / OWN_BASE)
        config.base_model_name_or_path = f"./{OWN_BASE}"
    config.task_type = _task_name(plain)
    config.save_pretrained(str(folder))
    fill_tensors(folder / WEIGHTS[0], {PREFIX + each: tensor.clone() for each, tensor in tensors.items()})


def adapter_of(module: Any) -> str:
    """The name of the adapter that computes, of those that a model has."""
    active = (part.active_adapters for part in module.modules() if hasattr(part, "base_layer"))
    return next((names[0] for names in active if names), next(iter(module.peft_config)))


def _task_name(module: Any) -> str | None:
    """The library's name of the task. A classifier has one only if its head is trained: the name makes it so."""
    from peft.utils import ModulesToSaveWrapper

    task = text_task(task_of(module))
    if not task.predicts_tokens and not any(isinstance(part, ModulesToSaveWrapper) for part in module.modules()):
        return None
    return task.adapter_type


def _name_of_base(name: str | None) -> str | None:
    """A name under which the base can be loaded from anywhere; None if there is none."""
    if not name or Path(name).is_dir():
        return str(Path(name).resolve()) if name else None
    return name


def _without_adapters(module: Any) -> Any:
    """A copy of the model as it was before adapters were put into it."""
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils import ModulesToSaveWrapper

    copied = copy.deepcopy(module).cpu()
    for name, part in list(copied.named_modules()):
        inner = (
            part.get_base_layer()
            if isinstance(part, BaseTunerLayer)
            else part.original_module
            if isinstance(part, ModulesToSaveWrapper)
            else None
        )
        if inner is not None:
            parent, _, last = name.rpartition(".")
            setattr(copied.get_submodule(parent), last, inner)
    del copied.peft_config
    return copied
