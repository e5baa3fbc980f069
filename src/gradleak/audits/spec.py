"""The form of `audit.yaml`. Command-line flags override it; unknown keys are errors."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator

from gradleak.core.budget import parse_duration
from gradleak.core.errors import GradleakError
from gradleak.core.registry import suggest
from gradleak.models.families import Task

MAX_BYTES = 1 << 20

# A task as users write it: `lm` is short for `causal-lm`.
TaskName = Annotated[Task, BeforeValidator(lambda name: "causal-lm" if name == "lm" else name)]


class AuditConfig(BaseModel):
    """Everything an audit can be told, with its defaults."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str = Field("minilm", description="built-in name, Hugging Face folder or hub id")
    task: TaskName | None = None
    num_labels: int | None = Field(None, ge=2)
    data: str = Field("builtin", description="built-in corpus, a .txt, .csv, .tsv or .jsonl file; .npz for images")
    text_column: str | None = None
    label_column: str | None = None
    max_tokens: int | None = Field(None, ge=3)
    window: int | None = Field(None, ge=2, description="texts are cut into pieces of exactly so many tokens")
    entities: bool = Field(False, description="whether named entities are looked for and scored (NERR)")
    attack: str = "auto"
    options: dict[str, Any] = Field(default_factory=dict)
    batch_size: int = Field(1, ge=1)
    trials: int = Field(4, ge=1)
    seed: int = 0
    known: tuple[str, ...] = ("batch_size",)
    client: str = Field(
        "fedsgd", description="fedsgd or fedavg:epochs=1,batch=1,lr=5e-5, with mode=train for dropout"
    )
    defenses: tuple[str, ...] = Field((), description="what the client does to its update, such as noise:sigma=0.01")
    observe: str = Field("all", description="the part of the model whose tensors the attacker sees: layer:6.query")
    device: str = "cpu"
    budget: str | None = None
    out: str | None = None
    redact: bool = False

    @field_validator("text_column", "label_column", mode="before")
    @classmethod
    def _column(cls, value: object) -> object:
        return str(value) if isinstance(value, int) else value  # a column's number may stand unquoted in YAML

    @field_validator("known", mode="before")
    @classmethod
    def _known(cls, value: object) -> object:
        return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value

    @property
    def seconds(self) -> float | None:
        return None if self.budget is None else parse_duration(self.budget)


def load_config(path: Path | None, overrides: dict[str, Any]) -> AuditConfig:
    """The configuration of a YAML file with the given values on top."""
    values = {} if path is None else read_yaml(path)
    where = "the command line" if path is None else str(path)
    options = {**_table(values.get("options")), **overrides.pop("options", {})}
    values = {**values, **overrides}
    if options:
        values["options"] = options
    try:
        return AuditConfig.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            raise GradleakError(f"{where}: unknown key {key!r}; {suggest(key, AuditConfig.model_fields)}") from error
        raise GradleakError(f"{where}: {key}: {first['msg']}") from error


class _PlainLoader(yaml.SafeLoader):
    """YAML without aliases: a few lines of them can stand for more values than any memory holds."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.MarkedYAMLError(problem="aliases (*name) are not supported")
        return super().compose_node(parent, index)


def read_yaml(path: Path) -> dict[str, Any]:
    """A mapping out of a YAML file, or a clear error."""
    try:
        if not path.is_file():
            raise GradleakError(f"no configuration file at {path}")
        if path.stat().st_size > MAX_BYTES:
            raise GradleakError(f"{path} is larger than a configuration can be")
        values = yaml.load(path.read_text(encoding="utf-8"), _PlainLoader)
    except OSError as error:
        raise GradleakError(f"cannot read {path}: {error.strerror}") from error
    # The library lets through what its converters of dates, numbers and tagged values stumble over.
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError, RecursionError) as error:
        problem = getattr(error, "problem", None) or "not readable"
        raise GradleakError(f"{path} is not valid YAML: {problem}") from error
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise GradleakError(f"{path} must be a list of `key: value` lines")
    return values


def _table(value: object) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise GradleakError("options must be a list of `name: value` lines")
    return dict(value)


def parse_options(pairs: list[str]) -> dict[str, Any]:
    """Options of the form key=value; the attack's own types decide what a value means.

    >>> parse_options(["steps=400", "prior=none"])
    {'steps': '400', 'prior': 'none'}
    """
    options = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise GradleakError(f"option {pair!r} is not of the form key=value")
        options[key.strip()] = value.strip()
    return options
