"""What every defence is: a change of the tensors a client is about to send."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from gradleak.models.target import TargetModel


class Defense(BaseModel, ABC):
    """A subclass names itself, says in a sentence what it does, and has its strengths as fields."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: ClassVar[str]
    summary: ClassVar[str]

    @abstractmethod
    def apply(
        self, tensors: Mapping[str, Tensor], model: TargetModel, generator: torch.Generator
    ) -> dict[str, Tensor]:
        """The tensors as they are sent; all randomness comes from the generator."""

    def __str__(self) -> str:
        values = ",".join(f"{key}={value}" for key, value in self.model_dump().items())
        return f"{self.name}:{values}" if values else self.name
