"""The form of sweep.yaml: every combination of what is listed, each an audit."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from gradleak.audits.spec import AuditSpec, TaskName
from gradleak.core.errors import GradleakError
from gradleak.core.parameters import validated
from gradleak.core.yaml_files import read_yaml
from gradleak.defenses.chains import Chain, chain_list, parse_chain
from gradleak.experiments.runner.cell import Limits
from gradleak.experiments.specs import AttackChoice, ExperimentSpec
from gradleak.models.lora_text import LoraSettings
from gradleak.models.selection_text import ALL, parse_selection
from gradleak.updates.client_rule import ClientRule

MAX_CELLS = 1_000_000


class _Choice(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class ModelChoice(_Choice):
    """A model to audit; a bare name stands for itself."""

    model: str = Field(description="built-in name, Hugging Face folder or hub id")
    task: TaskName | None = None
    num_labels: int | None = Field(None, ge=2)
    lora: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _bare(cls, value: object) -> object:
        return {"model": value} if isinstance(value, str) else value


class DataChoice(_Choice):
    """Where private examples are drawn from; a bare name stands for itself."""

    data: str = Field(description="as `data` of an audit")
    text_column: str | None = None
    label_column: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _bare(cls, value: object) -> object:
        return {"data": value} if isinstance(value, str) else value

    @field_validator("text_column", "label_column", mode="before")
    @classmethod
    def _column(cls, value: object) -> object:
        return str(value) if isinstance(value, int) else value


class SweepSpec(ExperimentSpec):
    """Everything a sweep can be asked. The lists are multiplied; settings of an audit hold for all cells."""

    varied = frozenset(
        {"model", "task", "num_labels", "lora", "text_column", "label_column", "batch_size", "client", "attack"}
        | {"options", "seed", "attack_seed", "budget", "memory"}
    )

    models: tuple[ModelChoice, ...] = Field((ModelChoice(model="minilm"),), min_length=1)
    data: tuple[DataChoice, ...] = Field((DataChoice(data="builtin"),), min_length=1)
    batch_sizes: tuple[int, ...] = Field((1,), min_length=1, description="sentences, or images, in a client's batch")
    clients: tuple[str, ...] = Field(("fedsgd",), min_length=1)
    defenses: tuple[Chain, ...] = Field(((),), min_length=1, description="settings to compare; none is no defence")
    attacks: tuple[AttackChoice, ...] = Field((), description="default: auto, and lti for images")
    observe: tuple[str, ...] = Field((ALL,), min_length=1, description="parts of the model the attacker sees")
    seeds: tuple[int, ...] = Field((0,), min_length=1, description="repetitions, each with texts of its own")

    threads: int = Field(1, ge=1, le=1024, description="threads of a worker; fixed, because sums depend on it")
    together: int = Field(
        1, ge=1, le=1024, description="cells of one model and attack that share the engine's passes"
    )
    limits: Limits = Limits()
    out: str | None = None

    @field_validator("seeds", mode="before")
    @classmethod
    def _seeds(cls, value: object) -> object:
        """A number stands for as many seeds, from 0."""
        return range(min(value, MAX_CELLS + 1)) if type(value) is int else value

    @field_validator("defenses", mode="before")
    @classmethod
    def _defenses(cls, value: object) -> object:
        return [parse_chain(chain) for chain in chain_list(value)]

    @model_validator(mode="after")
    def _checked(self) -> SweepSpec:
        """Refuse what could not run before any work is spent."""
        if self.count > MAX_CELLS:
            raise GradleakError(f"this sweep would have {self.count:,} cells; {MAX_CELLS:,} is the limit")
        if min(self.batch_sizes) < 1:
            raise ValueError("a batch has at least 1 sentence")
        for client in self.clients:
            ClientRule.parse(client)
        for adapters in filter(None, (choice.lora for choice in self.models)):
            LoraSettings.parse(adapters)
        for part in self.observe:
            parse_selection(part)
        return self

    @property
    def count(self) -> int:
        """How many combinations there are."""
        return math.prod(map(len, self._lists()))

    def _lists(self) -> list[Sequence[Any]]:
        return [
            self.models, self.data, self.batch_sizes, self.clients, self.defenses, self.observe,
            self.attacks or (None,), self.seeds,
        ]  # fmt: skip

    def audits(self) -> Iterator[AuditSpec]:
        """Every combination as an audit, those of one model together so that workers seldom load another.

        >>> sweep = SweepSpec(batch_sizes=(1, 2), seeds=(0, 1, 2))
        >>> [(audit.batch_size, audit.seed) for audit in sweep.audits()]
        [(1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (2, 2)]
        """
        for model, data, size, client, chain, part, attack, seed in itertools.product(*self._lists()):
            chosen = {**model.model_dump(exclude_none=True), **data.model_dump(exclude_none=True)}
            chosen |= {} if attack is None else {"attack": attack.name, "options": attack.options}
            if "observe" in self.model_fields_set:  # else a named threat model may say what is seen
                chosen["observe"] = part
            yield self.audit.with_(**chosen, batch_size=size, client=client, defenses=chain, seed=seed)


def load_sweep(path: Path, changes: Mapping[str, Any] | None = None) -> SweepSpec:
    """The sweep of a YAML file with the given values on top."""
    return validated(SweepSpec, {**read_yaml(path), **(changes or {})}, str(path))
