"""Short texts that name a thing and set its values: `fedavg:epochs=2,lr=1e-4`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from gradleak.core.errors import GradleakError
from gradleak.core.registry import suggest

Model = TypeVar("Model", bound=BaseModel)

# What seeds, counts and sizes fit into.
BITS = 63


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
        if key.strip() in values:
            raise GradleakError(f"{text!r} gives {key.strip()!r} twice")
        values[key.strip()] = value.strip()
    return name, values


def validated(kind: type[Model], values: Mapping[str, Any], where: str) -> Model:
    """These values as settings of a kind; an unknown key is answered with the nearest ones that exist there."""
    try:
        return with_an_end(kind.model_validate(dict(values)))
    except GradleakError as error:
        raise GradleakError(f"{where}: {error}") from error
    except ValidationError as error:
        # A misspelt key explains that another is missing, so it comes first.
        first = min(error.errors(include_url=False), key=lambda each: each["type"] != "extra_forbidden")
        place = first["loc"]
        key = ".".join(str(part) for part in place)
        if first["type"] == "extra_forbidden":
            names = _names_at(kind, place[:-1])
            instead = suggest(str(place[-1]), names) if names else "it has no settings"
            raise GradleakError(f"{where}: unknown key {key!r}; {instead}") from error
        message = first["msg"].removeprefix("Value error, ")
        raise GradleakError(f"{where}: {f'{key}: ' if key else ''}{message}") from error


def with_an_end(settings: Model) -> Model:
    """The same settings, unless one is a whole number that nothing can count to."""
    for name, value in settings:
        if isinstance(value, int) and value.bit_length() > BITS:
            raise GradleakError(f"{name}: the number is too large")
    return settings


def _names_at(kind: type[BaseModel], place: tuple[int | str, ...]) -> list[str]:
    """The keys that exist where an unknown one stands; `kind.keys()` where some are those of a nested model."""
    for part in place:
        field = kind.model_fields.get(part) if isinstance(part, str) else None
        if field is not None:
            kind = next(_models_in(field.annotation), kind)
    listing = getattr(kind, "keys_in_files", None)
    return list(listing()) if listing is not None else list(kind.model_fields)


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """The settings that an annotation such as `tuple[Some, ...] | None` holds."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models_in(inner)
