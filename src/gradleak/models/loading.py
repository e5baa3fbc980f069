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
from gradleak.models.families import Family, Task
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
    family: Family | None = None
    shape: tuple[int, int, int] | None = None
    processor: Any = None
    adapted: bool = False  # adapters of a folder will be put on it

    @property
    def frozen(self) -> bool:
        """Whether the weights of the files are not trained."""
        return self.adapted or self.lora is not None

    def refuse_text_settings(self, name: str, own_classes: bool = True) -> None:
        """For models of images; most have classes of their own, which cannot be set."""
        given = {"task": self.task, "tokenizer": self.tokenizer, "lora": self.lora, "family": self.family}
        for setting, value in given.items():
            if value is not None:
                raise GradleakError(f"{setting!r} is for text models; {name} reads images")
        if own_classes and self.num_labels is not None:
            raise GradleakError(f"'num_labels' is for checkpoints with a new head; {name} has classes of its own")

    def refuse_image_settings(self, name: str) -> None:
        """For models of text."""
        for setting, value in {"shape": self.shape, "processor": self.processor}.items():
            if value is not None:
                raise GradleakError(f"{setting!r} is for models that read images; {name} reads text")


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
