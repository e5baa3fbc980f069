"""What decides how a model is loaded, whatever its kind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from pydantic import BaseModel

from gradleak.core.errors import GradleakError
from gradleak.core.progress import Progress
from gradleak.models.base import Target
from gradleak.models.families import Task
from gradleak.models.lora_text import LoraSettings
from gradleak.models.tasks import TargetTask


@dataclass(frozen=True)
class Loading:
    """The keywords of `load_model` that loaders of several kinds take."""

    task: Task | None
    num_labels: int | None
    head_seed: int
    tokenizer: Any
    device: torch.device
    progress: Progress
    lora: LoraSettings | None = None
    adapted: bool = False  # adapters of a folder will be put on it

    @property
    def frozen(self) -> bool:
        """Whether the weights of the files are not trained."""
        return self.adapted or self.lora is not None

    def refuse_text_settings(self, name: str) -> None:
        """For models of images, whose task and classes are fixed."""
        given = {"task": self.task, "num_labels": self.num_labels, "tokenizer": self.tokenizer, "lora": self.lora}
        for setting, value in given.items():
            if value is not None:
                raise GradleakError(f"{setting!r} is for text models; {name} reads images")


@dataclass(frozen=True)
class BuiltIn:
    """A model that is known by name; `load` gets the whole text, the values it sets, and how to load."""

    task: TargetTask
    summary: str
    options: type[BaseModel]
    load: Callable[[str, Any, Loading], Target]


def resolve_device(name: str) -> torch.device:
    """A torch device that computes here, or a clear error."""
    try:
        device = torch.device(name)
        torch.ones(1, device=device).sum().item()  # the meta device has no values to give back
    except Exception as error:  # each backend has errors of its own
        why = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise GradleakError(f"device {name!r} cannot be used here: {why[:200]}") from error
    return device
