"""What makes a kept result valid: hashes of values, files and source that decided it.

A version number that people raise by hand is forgotten sooner or later, and then old results pass for new ones. The
source cannot be forgotten. Comments, layout and docstrings do not count, so that they can be mended without running
everything again; and only the files reached by imports do, so that a change to one attack leaves the results of the
others as they are.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

ROOT = "gradleak"
# Reached by imports, but they only show or record.
_NOT_COUNTED = {"gradleak", "gradleak.core.environment", "gradleak.core.progress", "gradleak.version"}


def readable(name: str) -> str:
    """A name as a file can have it.

    >>> readable("Noise: sigma=0.1")
    'noise-sigma-0-1'
    """
    return re.sub("[^a-z0-9]+", "-", name.lower()).strip("-")[:80]


def digest(values: Mapping[str, Any]) -> str:
    """A hash of values, the same on every machine and in whatever order they are given."""
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()


def digest_files(text: str) -> str:
    """A hash of the file or folder that a text names, or the text itself if it names none."""
    try:
        place = Path(text)
        files = sorted(path for path in place.rglob("*") if path.is_file()) if place.is_dir() else [place]
        if not text or not files[0].is_file():
            return text
    except (OSError, ValueError, IndexError):  # a text that no file can be named by, or an empty folder
        return text
    whole = hashlib.sha256()
    for path in files:
        with path.open("rb") as stream:
            whole.update(f"{path.relative_to(place)} {hashlib.file_digest(stream, 'sha256').hexdigest()}\n".encode())
    return whole.hexdigest()


@functools.lru_cache(maxsize=1024)
def digest_code(modules: frozenset[str]) -> str:
    """A hash of the source of these modules and of all of this package that they reach."""
    whole = hashlib.sha256()
    for name in sorted(reached(modules)):
        whole.update(f"{name} {_source_hash(name)}\n".encode())
    return whole.hexdigest()[:32]


def reached(modules: Iterable[str]) -> set[str]:
    """These modules and all of this package that they import, directly or not; imports inside functions count."""
    names: set[str] = set()
    waiting = list(modules)
    while waiting:
        name = waiting.pop()
        if name not in names and name not in _NOT_COUNTED:
            names.add(name)
            waiting += imports_of(name)
    return names


@functools.cache
def imports_of(module: str) -> tuple[str, ...]:
    """The modules of this package that a module imports, wherever in it."""
    names: set[str] = set()
    for node in ast.walk(_tree(module)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return tuple(name for name in sorted(names) if name.split(".")[0] == ROOT and _file(name) is not None)


@functools.cache
def _source_hash(module: str) -> str:
    return hashlib.sha256(meaning(_tree(module)).encode()).hexdigest()


def meaning(tree: ast.Module) -> str:
    """The source without comments, layout and docstrings.

    >>> meaning(ast.parse('def f(x):  # note\\n    "What it does."\\n    return (x)'))
    'def f(x):\\n    return x'
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(tree)


@functools.cache  # it is read for its imports and for its hash; parsing is most of the time that both take
def _tree(module: str) -> ast.Module:
    file = _file(module)
    assert file is not None
    return ast.parse(file.read_text(encoding="utf-8"))


@functools.cache
def _file(module: str) -> Path | None:
    """The file of a module; None for what only looks like one, such as a class of a module."""
    try:
        spec = importlib.util.find_spec(module)
    except ModuleNotFoundError:
        return None
    return Path(spec.origin) if spec is not None and spec.origin and spec.origin.endswith(".py") else None
