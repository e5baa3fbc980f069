"""Names to objects, imported only when asked for, with helpful errors for names that are not there."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable
from typing import Generic, TypeVar, cast

from gradleak.errors import GradleakError

T = TypeVar("T")


def suggest(name: str, known: Iterable[str]) -> str:
    """The tail of an error message: the nearest known names, or all of them.

    >>> suggest("lamp-cosine", ["dlg", "tag", "lamp-cos"])
    "did you mean 'lamp-cos'? (known: dlg, lamp-cos, tag)"
    >>> suggest("xyz", ["dlg", "tag"])
    'known: dlg, tag'
    """
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    listing = f"known: {', '.join(names)}"
    if not near:
        return listing
    return f"did you mean {' or '.join(repr(n) for n in near)}? ({listing})"


class Registry(Generic[T]):
    """A table of names. An entry is an object, or a string "module:attribute" that is imported on first use."""

    def __init__(self, kind: str, entries: dict[str, T | str]) -> None:
        self.kind = kind
        self._entries = dict(entries)

    def names(self) -> list[str]:
        return sorted(self._entries)

    def register(self, name: str, entry: T | str) -> None:
        """Add an entry. A name can be taken only once, so that results stay attributable."""
        if name in self._entries:
            raise GradleakError(f"{self.kind} {name!r} is registered already")
        self._entries[name] = entry

    def get(self, name: str) -> T:
        """The object of that name, or an error with the nearest names."""
        if name not in self._entries:
            raise GradleakError(f"unknown {self.kind} {name!r}; {suggest(name, self._entries)}")
        entry = self._entries[name]
        if isinstance(entry, str):
            module, _, attribute = entry.partition(":")
            entry = cast(T, getattr(importlib.import_module(module), attribute))
            self._entries[name] = entry
        return entry
