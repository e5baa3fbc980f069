"""Short texts that name a thing and set its values: `fedavg:epochs=2,lr=1e-4`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from gradleak.core.errors import GradleakError
from gradleak.core.registry import suggest

Model = TypeVar("Model", bound=BaseModel)


def split_parameters(text: str, *, modules: bool = True) -> tuple[str, dict[str, str]]:
    """The name and the values of a text. With `modules` the name may be a user's own, `module:Attribute`.

    >>> split_parameters("fedavg:epochs=2,lr=1e-4")
    ('fedavg', {'epochs': '2', 'lr': '1e-4'})
    >>> split_parameters("mine:Rounded:digits=2")
    ('mine:Rounded', {'digits': '2'})
    """
    name, _, rest = (part.strip() for part in text.partition(":"))
    attribute, _, after = rest.partition(":")
    if modules and attribute.strip() and "=" not in attribute:
        name, rest = f"{name}:{attribute.strip()}", after
    values = {}
    for pair in filter(None, (part.strip() for part in rest.split(","))):
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise GradleakError(f"{text!r}: {pair!r} is not of the form key=value")
        values[key.strip()] = value.strip()
    return name, values


def validated(kind: type[Model], values: Mapping[str, object], where: str) -> Model:
    """A pydantic model of these values, or one clear line about the first that is wrong."""
    try:
        return kind.model_validate(dict(values))
    except ValidationError as error:
        # A misspelt name explains why another is missing, so it goes first.
        first = min(error.errors(), key=lambda each: each["type"] != "extra_forbidden")
        key = str(first["loc"][0]) if first["loc"] else ""
        if first["type"] == "extra_forbidden":
            raise GradleakError(f"{where}: unknown value {key!r}; {suggest(key, kind.model_fields)}") from error
        message = first["msg"].removeprefix("Value error, ")
        raise GradleakError(f"{where}: {f'{key}: ' if key else ''}{message}") from error
