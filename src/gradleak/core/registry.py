"""Names to objects, imported only when asked for, with helpful errors for names that are not there."""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from gradleak.core.errors import GradleakError

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
    """A table of names. An entry is an object, or a string "module:attribute" that is imported on first use.

    With a `base`, a name with a dot is a class of the user's own: `mine.Longest` is `Longest` of `mine.py` in the
    working folder, or of an installed package. It goes by that name in results too, so that it is found again.
    """

    def __init__(self, kind: str, entries: dict[str, T | str], base: type[Any] | None = None) -> None:
        self.kind = kind
        self._entries = dict(entries)
        self._base = base
        self._own: dict[str, T] = {}

    def names(self) -> list[str]:
        return sorted(self._entries)

    def __contains__(self, name: str) -> bool:
        return name in self._entries or name in self._own

    def register(self, name: str, entry: T | str) -> None:
        """Add an entry. A name can be taken only once, so that results stay attributable."""
        if name in self._entries:
            raise GradleakError(f"{self.kind} {name!r} is registered already")
        self._entries[name] = entry

    def get(self, name: str) -> T:
        """The object of that name, or an error with the nearest names."""
        if "." in name and self._base is not None and name not in self._entries:
            return self._own.setdefault(name, self._users_own(name, self._base))
        if name not in self._entries:
            raise GradleakError(f"unknown {self.kind} {name!r}; {suggest(name, self._entries)}")
        entry = self._entries[name]
        if isinstance(entry, str):
            module, _, attribute = entry.partition(":")
            entry = cast(T, getattr(importlib.import_module(module), attribute))
            self._entries[name] = entry
        return entry

    def _users_own(self, path: str, base: type[Any]) -> T:
        module, _, attribute = path.rpartition(".")
        here = str(Path.cwd())
        if here not in sys.path:
            sys.path.append(here)  # at the end: a file of the user's must not take a library's place
        try:
            found = getattr(importlib.import_module(module), attribute, None)
        except ModuleNotFoundError as error:
            raise GradleakError(f"unknown {self.kind} {path!r}: there is no module {error.name!r}") from error
        except (ValueError, TypeError) as error:  # names such as ".." are no modules
            raise GradleakError(f"unknown {self.kind} {path!r}: {error}") from error
        if not isinstance(found, type) or not issubclass(found, base):
            raise GradleakError(
                f"{path!r} is no {self.kind}: {attribute!r} must be a subclass of {base.__qualname__}"
            )
        found.name = path  # type: ignore[attr-defined]
        return cast(T, found)
