"""From sweep.yaml to cells: every combination of what is listed, each an audit with a seed of its own."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from gradleak.attacks import ATTACKS
from gradleak.audits.spec import AuditConfig, TaskName, read_yaml
from gradleak.core.errors import GradleakError
from gradleak.core.registry import suggest
from gradleak.defenses.chains import Chain, chain_list, label, parse_chain
from gradleak.experiments.frontier.config import AttackSpec
from gradleak.experiments.runner.cell import Limits
from gradleak.models.selection import ALL, parse_selection
from gradleak.updates.update import GRANTS, ClientRule

MAX_CELLS = 1_000_000


class _Spec(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class ModelSpec(_Spec):
    """A model to audit; a bare name stands for itself."""

    model: str = Field(description="built-in name, Hugging Face folder or hub id")
    task: TaskName | None = None
    num_labels: int | None = Field(None, ge=2)


class DataSpec(_Spec):
    """Where private texts are drawn from; a bare name stands for itself."""

    data: str = Field(description="built-in corpus, or a .txt, .csv, .tsv or .jsonl file")
    text_column: str | None = None
    label_column: str | None = None

    @field_validator("text_column", "label_column", mode="before")
    @classmethod
    def _column(cls, value: object) -> object:
        return str(value) if isinstance(value, int) else value


class SweepConfig(_Spec):
    """Everything a sweep can be told. The lists are multiplied; the rest holds for all cells."""

    models: tuple[ModelSpec, ...] = Field((ModelSpec(model="minilm"),), min_length=1)
    data: tuple[DataSpec, ...] = Field((DataSpec(data="builtin"),), min_length=1)
    batch_sizes: tuple[int, ...] = Field((1,), min_length=1, description="sentences in a client's batch")
    clients: tuple[str, ...] = Field(("fedsgd",), min_length=1)
    defenses: tuple[Chain, ...] = Field(((),), min_length=1, description="settings to compare; none is no defence")
    attacks: tuple[AttackSpec, ...] = Field((AttackSpec(name="auto"),), min_length=1)
    observe: tuple[str, ...] = Field((ALL,), min_length=1, description="parts of the model the attacker sees")
    seeds: tuple[int, ...] = Field((0,), min_length=1, description="repetitions, each with texts of its own")

    trials: int = Field(4, ge=1, description="attacked updates of a cell")
    known: tuple[str, ...] = ("batch_size",)
    max_tokens: int | None = Field(None, ge=3)
    window: int | None = Field(None, ge=2, description="texts are cut into pieces of exactly so many tokens")
    entities: bool = False
    device: str = "cpu"
    redact: bool = False
    threads: int = Field(1, ge=1, le=1024, description="threads of a worker; fixed, because sums depend on it")
    together: int = Field(
        1, ge=1, le=1024, description="cells of one model and attack that share the engine's passes"
    )
    limits: Limits = Limits()
    out: str | None = None

    @field_validator("models", mode="before")
    @classmethod
    def _models(cls, value: object) -> object:
        return _named(value, "model")

    @field_validator("data", mode="before")
    @classmethod
    def _data(cls, value: object) -> object:
        return _named(value, "data")

    @field_validator("attacks", mode="before")
    @classmethod
    def _attacks(cls, value: object) -> object:
        return _named(value, "name")

    @field_validator("seeds", mode="before")
    @classmethod
    def _seeds(cls, value: object) -> object:
        """A number stands for as many seeds, from 0."""
        return range(min(value, MAX_CELLS + 1)) if type(value) is int else value

    @field_validator("batch_sizes")
    @classmethod
    def _sizes(cls, sizes: tuple[int, ...]) -> tuple[int, ...]:
        if min(sizes) < 1:
            raise ValueError("a batch has at least 1 sentence")
        return sizes

    @field_validator("defenses", mode="before")
    @classmethod
    def _defenses(cls, value: object) -> object:
        return [parse_chain(one) for one in chain_list(value)]

    @field_validator("known", mode="before")
    @classmethod
    def _known(cls, value: object) -> object:
        return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value

    @model_validator(mode="after")
    def _checked(self) -> SweepConfig:
        """Refuse what could not run before any work is spent."""
        if self.count > MAX_CELLS:
            raise GradleakError(f"this sweep would have {self.count:,} cells; {MAX_CELLS:,} is the limit")
        for client in self.clients:
            ClientRule.parse(client)
        for attack in self.attacks:
            ATTACKS.get(attack.name).from_settings(attack.options)
        for part in self.observe:
            parse_selection(part)
        strange = sorted(set(self.known) - set(GRANTS))
        if strange:
            raise GradleakError(f"known: unknown grant {strange[0]!r}; {suggest(strange[0], GRANTS)}")
        return self

    @property
    def count(self) -> int:
        """How many combinations there are."""
        return math.prod(map(len, self._lists()))

    def _lists(self) -> list[Sequence[Any]]:
        return [
            self.models, self.data, self.batch_sizes, self.clients, self.defenses, self.observe, self.attacks,
            self.seeds,
        ]  # fmt: skip

    def audits(self) -> Iterator[tuple[ModelSpec, DataSpec, AuditConfig]]:
        """Every combination as an audit, those of one model together so that workers seldom load another.

        >>> config = SweepConfig(batch_sizes=(1, 2), seeds=(0, 1, 2))
        >>> [(audit.batch_size, audit.seed) for _, _, audit in config.audits()]
        [(1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (2, 2)]
        """
        names = ("trials", "known", "max_tokens", "window", "entities", "device", "redact")
        shared = {name: getattr(self, name) for name in names}
        for model, data, size, client, chain, part, attack, seed in itertools.product(*self._lists()):
            yield model, data, AuditConfig(
                **model.model_dump(), **data.model_dump(), batch_size=size, client=client, defenses=chain,
                observe=part, attack=attack.name, options=attack.options, seed=seed, **shared,
            )  # fmt: skip


def load_sweep(path: Path, overrides: Mapping[str, Any] | None = None) -> SweepConfig:
    """The configuration of a YAML file with the given values on top."""
    values = {**read_yaml(path), **(overrides or {})}
    try:
        return SweepConfig.model_validate(values)
    except GradleakError as error:
        raise GradleakError(f"{path}: {error}") from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            known = suggest(str(first["loc"][-1]), _fields(first["loc"]))
            raise GradleakError(f"{path}: unknown key {key!r}; {known}") from error
        message = first["msg"].removeprefix("Value error, ")
        raise GradleakError(f"{path}: {f'{key}: ' if key else ''}{message}") from error


def describe(settings: AuditConfig) -> str:
    """A cell in a few words.

    >>> describe(AuditConfig(attack="lamp-cos", options={"steps": 30}, batch_size=4, seed=1))
    'minilm builtin b4 fedsgd none all lamp-cos steps=30 s1'
    """
    attack = AttackSpec(name=settings.attack, options=settings.options).label
    names = [Path(settings.model).name, Path(settings.data).name, f"b{settings.batch_size}", settings.client]
    return " ".join([*names, label(settings.defenses), settings.observe, attack, f"s{settings.seed}"])


def _named(value: object, key: str) -> object:
    return [{key: one} if isinstance(one, str) else one for one in value] if isinstance(value, list) else value


def _fields(place: tuple[int | str, ...]) -> list[str]:
    """The keys that are known where the unknown one stands."""
    inner: dict[object, type[BaseModel]] = {
        "models": ModelSpec, "data": DataSpec, "attacks": AttackSpec, "limits": Limits,
    }  # fmt: skip
    owner = inner.get(place[0], SweepConfig) if len(place) > 1 else SweepConfig
    return list(owner.model_fields)
