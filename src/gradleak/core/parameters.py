"""Short texts that name a thing and set its values: `fedavg:epochs=2,lr=1e-4`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from gradleak.core.errors import GradleakError
from gradleak.core.registry import suggest

Named = TypeVar("Named", bound=BaseModel)


def split_spec(text: str) -> tuple[str, dict[str, str]]:
    """The name and the values of a spec.

    >>> split_spec("fedavg:epochs=2,lr=1e-4")
    ('fedavg', {'epochs': '2', 'lr': '1e-4'})
    """
    name, _, rest = text.strip().partition(":")
    values = {}
    for pair in filter(None, (part.strip() for part in rest.split(","))):
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise GradleakError(f"{text!r}: {pair!r} is not of the form key=value")
        values[key.strip()] = value.strip()
    return name.strip(), values


def checked(kind: type[Named], values: Mapping[str, object], where: str) -> Named:
    """A pydantic model of these values, or one clear line about the first that is wrong."""
    try:
        return kind.model_validate(dict(values))
    except ValidationError as error:
        # A misspelt name explains that another is missing, so it is told first.
        first = min(error.errors(), key=lambda each: each["type"] != "extra_forbidden")
        key = str(first["loc"][0]) if first["loc"] else ""
        if first["type"] == "extra_forbidden":
            raise GradleakError(f"{where}: unknown value {key!r}; {suggest(key, kind.model_fields)}") from error
        message = first["msg"].removeprefix("Value error, ")
        raise GradleakError(f"{where}: {f'{key}: ' if key else ''}{message}") from error
