"""Settings from YAML files and from mappings, with one clear line about the first thing that is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError

from gradleak.core.errors import GradleakError
from gradleak.core.registry import suggest

MAX_BYTES = 1 << 20

Settings = TypeVar("Settings", bound=BaseModel)


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


def settings_of(kind: type[Settings], values: Mapping[str, Any], where: str) -> Settings:
    """These values as settings of a kind; an unknown key is answered with the nearest ones that exist there."""
    try:
        return kind.model_validate(dict(values))
    except GradleakError as error:
        raise GradleakError(f"{where}: {error}") from error
    except ValidationError as error:
        # A misspelt key explains that another is missing, so it comes first.
        first = min(error.errors(include_url=False), key=lambda each: each["type"] != "extra_forbidden")
        place = first["loc"]
        key = ".".join(str(part) for part in place)
        if first["type"] == "extra_forbidden":
            names = _names_at(kind, place[:-1])
            raise GradleakError(f"{where}: unknown key {key!r}; {suggest(str(place[-1]), names)}") from error
        message = first["msg"].removeprefix("Value error, ")
        raise GradleakError(f"{where}: {f'{key}: ' if key else ''}{message}") from error


def _names_at(kind: type[BaseModel], place: tuple[int | str, ...]) -> list[str]:
    """The keys that exist where an unknown one stands; `kind.keys()` where some are those of a nested model."""
    for part in place:
        field = kind.model_fields.get(part) if isinstance(part, str) else None
        if field is not None:
            kind = next(_models_in(field.annotation), kind)
    listing = getattr(kind, "keys_in_files", None)
    return list(listing()) if listing is not None else list(kind.model_fields)


def _models_in(annotation: Any) -> Any:
    """The settings that an annotation such as `tuple[Some, ...] | None` holds."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models_in(inner)
