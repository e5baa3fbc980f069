"""The form of `frontier.yaml`: attacks, defences, and the training that tells what the defences cost."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from gradleak.attacks import ATTACKS
from gradleak.audits.spec import TaskName, read_yaml
from gradleak.core.errors import GradleakError
from gradleak.core.registry import suggest
from gradleak.defenses.chains import Chain, chain_list, parse_chains
from gradleak.experiments.frontier.advice import TOLERANCE
from gradleak.training.rounds import RoundSettings
from gradleak.updates.update import GRANTS, ClientRule


class AttackSpec(BaseModel):
    """An attack with its options; the same attack may be listed with several sets of them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    options: dict[str, Any] = {}

    @property
    def label(self) -> str:
        """
        >>> AttackSpec(name="lamp-cos", options={"adapt": False}).label
        'lamp-cos adapt=false'
        """
        said = [
            f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in self.options.items()
        ]
        return " ".join([self.name, *said])


class FrontierConfig(BaseModel):
    """Everything a frontier can be told, with its defaults."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str = Field("minilm", description="built-in name, Hugging Face folder or hub id")
    task: TaskName | None = None
    num_labels: int | None = Field(None, ge=2)
    data: str = Field("builtin", description="built-in corpus, or a .txt, .csv, .tsv or .jsonl file")
    text_column: str | None = None
    label_column: str | None = None
    known: tuple[str, ...] = ("batch_size",)
    client: str = "fedsgd"
    batch_size: int = Field(1, ge=1, description="sentences of an attacked update")
    trials: int = Field(8, ge=1, description="attacked updates of every attack and defence")
    max_tokens: int | None = Field(None, ge=3, description="texts of more tokens are not attacked")
    seed: int = 0
    attacks: tuple[AttackSpec, ...] = Field((AttackSpec(name="auto"),), min_length=1)
    defenses: tuple[Chain, ...] = Field(((),), description="settings to compare; none is always among them")
    utility: RoundSettings = RoundSettings()
    metric: Literal["accuracy", "f1", "mcc"] = Field("accuracy", description="language models: always perplexity")
    tolerance: float = Field(TOLERANCE, ge=0, description="points a defence may cost; percent of perplexity")
    device: str = "cpu"

    @model_validator(mode="before")
    @classmethod
    def _same_batch(cls, values: Any) -> Any:
        """Clients train on as many rows as the attacked ones, unless the file says otherwise."""
        told = values.get("utility") or {} if isinstance(values, dict) else None
        if not isinstance(told, dict):
            return values
        size = values.get("batch_size", cls.model_fields["batch_size"].default)
        return {**values, "utility": {"batch_size": size, **told}}

    @field_validator("text_column", "label_column", mode="before")
    @classmethod
    def _column(cls, value: object) -> object:
        return str(value) if isinstance(value, int) else value

    @field_validator("attacks", mode="before")
    @classmethod
    def _attacks(cls, value: object) -> object:
        return [{"name": one} if isinstance(one, str) else one for one in value] if isinstance(value, list) else value

    @field_validator("defenses", mode="before")
    @classmethod
    def _defenses(cls, value: object) -> object:
        return parse_chains(chain_list(value))

    @model_validator(mode="after")
    def _checked(self) -> FrontierConfig:
        """Refuse what could not run before any work is spent."""
        labels = [attack.label for attack in self.attacks]
        if len(set(labels)) < len(labels):
            raise GradleakError("the same attack with the same options is listed twice")
        for attack in self.attacks:
            ATTACKS.get(attack.name).from_settings(attack.options)
        strange = sorted(set(self.known) - set(GRANTS))
        if strange:
            raise GradleakError(f"known: unknown grant {strange[0]!r}; {suggest(strange[0], GRANTS)}")
        ClientRule.parse(self.client)
        return self


def load_frontier(path: Path, overrides: Mapping[str, Any]) -> FrontierConfig:
    """The configuration of a YAML file with the given values on top."""
    values = {**read_yaml(path), **overrides}
    try:
        return FrontierConfig.model_validate(values)
    except GradleakError as error:
        raise GradleakError(f"{path}: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            raise GradleakError(
                f"{path}: unknown key {key!r}; {suggest(str(first['loc'][-1]), _fields(first['loc']))}"
            ) from error
        raise GradleakError(
            f"{path}: {f'{key}: ' if key else ''}{first['msg'].removeprefix('Value error, ')}"
        ) from error


def _fields(place: tuple[int | str, ...]) -> list[str]:
    """The keys that are known where the unknown one stands."""
    inner: dict[object, type[BaseModel]] = {"utility": RoundSettings, "attacks": AttackSpec}
    owner = inner.get(place[0], FrontierConfig) if len(place) > 1 else FrontierConfig
    return list(owner.model_fields)
