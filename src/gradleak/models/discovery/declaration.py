"""A declaration as Python source that can be kept in a file, changed, and given by `--family module:NAME`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from typing import Any

from gradleak.models.families.base import Family, Fused

INDENT = "    "


def constant_of(family: Family) -> str:
    """The name of the declaration in its file.

    >>> from gradleak.models.families import FAMILIES
    >>> constant_of(FAMILIES.get("xlm-roberta"))
    'XLM_ROBERTA'
    """
    name = re.sub(r"\W", "_", family.name).upper()
    return name if name.isidentifier() else f"MODEL_{name}"


def source_of(family: Family) -> str:
    """The source of a file that declares a family; what is as by default is left out."""
    values = {each.name: getattr(family, each.name) for each in fields(Family) if not _usual(family, each)}
    imports = ["from gradleak import Family"]
    if any(isinstance(where, Fused) for where in family.roles.values()):
        imports.append("from gradleak.models.families import Fused")
    lines = [f"{INDENT}{name}={_text(value, 1)}," for name, value in values.items()]
    about = f'"""Where models of type {family.name} keep their parts."""'
    return "\n".join([about, "", *imports, "", f"{constant_of(family)} = Family(", *lines, ")", ""])


def _usual(family: Family, each: Any) -> bool:
    usual = each.default if each.default_factory is MISSING else each.default_factory()
    return bool(getattr(family, each.name) == usual)


def _text(value: Any, depth: int) -> str:
    if isinstance(value, Mapping):
        inner = INDENT * (depth + 1)
        entries = [f"{inner}{_quoted(key)}: {_text(each, depth + 1)},\n" for key, each in value.items()]
        return "{\n" + "".join(entries) + INDENT * depth + "}"
    if isinstance(value, Fused):
        named = {"heights": value.heights, "groups": value.groups}
        further = [f"{name}={_text(each, depth)}" for name, each in named.items() if each is not None]
        return f"Fused({', '.join([_quoted(value.path), str(value.index), str(value.count), *further])})"
    if isinstance(value, tuple):
        return f"({', '.join(_text(each, depth) for each in value)}{',' if len(value) == 1 else ''})"
    if isinstance(value, Callable):  # type: ignore[arg-type]
        return _quoted(f"{value.__module__}:{value.__qualname__}")
    return _quoted(value) if isinstance(value, str) else repr(value)


def _quoted(text: str) -> str:
    return f'"{text}"' if text.isprintable() and not set(text) & set('"\\') else repr(text)
