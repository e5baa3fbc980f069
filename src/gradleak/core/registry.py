"""Names to objects, imported only when asked for. Other packages and a user's own files can add to them."""

from __future__ import annotations

import difflib
import importlib
import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property, reduce
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from gradleak.core.errors import GradleakError
from gradleak.core.text import enumerated

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
    """A table of names that can be extended from outside.

    An entry is a subclass of `base` (an instance of it if `instances`), or a text "module:attribute" that is imported
    on first use. A name is looked up among

    - the built-in entries and those added by `register`,
    - the entry points that installed packages declare in `group`,
    - `module:Attribute`: a class or object of a file in the working folder, or of an installed package.
    """

    def __init__(
        self, kind: str, entries: Mapping[str, T | str], *, base: type[Any], group: str, instances: bool = False
    ) -> None:
        self.kind, self.group = kind, group
        self._base, self._instances = base, instances
        self._entries = dict(entries)
        self._loaded: dict[str, T] = {}

    def names(self) -> list[str]:
        """All names but those of the form `module:Attribute`, which nobody can list."""
        return sorted({*self._entries, *self._entry_points})

    def __contains__(self, name: str) -> bool:
        """Whether the name is known without importing anything new; `module:Attribute` is once it was asked for."""
        return name in self._entries or name in self._entry_points or name in self._loaded

    def register(self, name: str | T, entry: T | str | None = None) -> Any:
        """Add an entry: `register("mine", Mine)`, `@register("mine")` above the class, or an object that has a name.

        A name can be taken only once, so that results stay attributable.
        """
        if not isinstance(name, str):
            name, entry = str(getattr(name, "name", "")), name
        if entry is None:

            def decorate(decorated: Any) -> Any:
                self.register(name, decorated)
                return decorated

            return decorate
        if not re.fullmatch(r"[\w.-]+", name):
            raise GradleakError(f"{name!r} cannot name a {self.kind}: use letters, digits, '_', '-' and '.'")
        if name in self._entries:
            raise GradleakError(f"{self.kind} {name!r} is registered already")
        self._entries[name] = entry if isinstance(entry, str) else self._checked(entry, name)
        return None

    def get(self, name: str) -> T:
        """The entry of that name, or an error with the nearest names."""
        if name not in self._loaded:
            self._loaded[name] = self._load(name)
        return self._loaded[name]

    def entries(self) -> Iterator[tuple[str, T | GradleakError]]:
        """Every listed name with its entry, or with the error of a package that cannot be loaded."""
        for name in self.names():
            try:
                yield name, self.get(name)
            except GradleakError as error:
                yield name, error

    def loaded(self) -> list[T]:
        """Every entry that was asked for so far, those of the form `module:Attribute` included."""
        return list(self._loaded.values())

    def name_of(self, entry: T) -> str:
        """The name that `get` takes for this entry.

        For a class nobody has registered or asked for it is `module:Class`.
        """
        path = f"{getattr(entry, '__module__', '')}:{getattr(entry, '__qualname__', '')}"
        for name, known in (*self._entries.items(), *self._loaded.items()):
            if known is entry or known == path:
                return name
        packages = (name for name, points in self._entry_points.items() if path in (p.value for p in points))
        return next(packages, path)

    def _load(self, name: str) -> T:
        if name in self._entries:
            entry = self._entries[name]
            return self._checked(self._imported(entry), name) if isinstance(entry, str) else entry
        if name in self._entry_points:
            return self._checked(self._from_package(name), name)
        module, colon, attribute = name.partition(":")
        if not colon:
            raise GradleakError(f"unknown {self.kind} {name!r}; {suggest(name, self.names())}")
        if module in self.names():
            raise GradleakError(f"{name!r}: {attribute!r} is not of the form key=value")
        if module.endswith(".py") or "/" in module or "\\" in module:
            plain = re.split(r"[/\\]", module.removesuffix(".py"))[-1]
            raise GradleakError(
                f"{self.kind} {name!r}: name the module as Python imports it, {plain}:{attribute}, and work in "
                "its folder"
            )
        return self._checked(self._from_file(name), name)

    @cached_property
    def _entry_points(self) -> dict[str, list[EntryPoint]]:
        """What installed packages add, by name; a name of ours is not theirs to take."""
        points: dict[str, list[EntryPoint]] = {}
        for point in entry_points(group=self.group):
            if point.name in self._entries:
                warnings.warn(f"{_described(point)} is not used: there is a {self.kind} {point.name!r}", stacklevel=2)
            elif point.value not in (other.value for other in points.get(point.name, ())):
                points.setdefault(point.name, []).append(point)
        return points

    def _from_package(self, name: str) -> Any:
        point, *others = self._entry_points[name]
        if others:
            both = " and ".join(map(_described, (point, *others)))
            raise GradleakError(f"{self.kind} {name!r} is registered twice: by {both}")
        try:
            return point.load()
        except Exception as error:  # whatever goes wrong in another's module
            raise GradleakError(f"{self.kind} {name!r}: {_described(point)} cannot be loaded: {error}") from error

    def _from_file(self, path: str) -> Any:
        here = str(Path.cwd())
        if here not in sys.path:
            sys.path.append(here)  # at the end: a user's file must not take a library's place
        return self._imported(path)

    def _imported(self, path: str) -> Any:
        try:
            return import_attribute(path)
        except ModuleNotFoundError as error:
            raise GradleakError(f"unknown {self.kind} {path!r}: there is no module {error.name!r}") from error
        except Exception as error:  # whatever goes wrong in that module
            raise GradleakError(f"{self.kind} {path!r} cannot be loaded: {error}") from error

    def _checked(self, entry: Any, name: str) -> T:
        of_base = isinstance if self._instances else issubclass
        fits = (self._instances or isinstance(entry, type)) and of_base(entry, self._base)
        if not fits:
            wanted = "an instance" if self._instances else "a subclass"
            raise GradleakError(f"{name!r} is no {self.kind}: it must be {wanted} of {self._base.__qualname__}")
        if missing := sorted(getattr(entry, "__abstractmethods__", ())) if isinstance(entry, type) else []:
            raise GradleakError(f"{name!r} is no {self.kind} yet: it lacks {enumerated(missing)}")
        return cast(T, entry)


def import_attribute(path: str) -> Any:
    """What a text "module:attribute" names."""
    module, _, attribute = path.partition(":")
    return reduce(getattr, attribute.split("."), importlib.import_module(module))


def _described(point: EntryPoint) -> str:
    return f"{point.value} of the package {point.dist.name if point.dist else '?'}"
