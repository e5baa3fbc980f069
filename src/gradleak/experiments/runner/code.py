"""The version of the code that makes a result: a hash of the source it runs through.

A version number that people raise by hand is forgotten sooner or later, and then old cells pass for new ones. The
source cannot be forgotten. Comments, layout and docstrings do not count, so that they can be mended without running
everything again; and only the files that an attack reaches by its imports do, so that a change to one attack leaves
the cells of the others as they are.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
from collections.abc import Iterable
from pathlib import Path

from gradleak.attacks import ATTACKS
from gradleak.attacks.control import Control
from gradleak.defenses import parse_defenses

ROOT = "gradleak"
# The honest side and the scoring, which every cell goes through.
SHARED = ("gradleak.audits.run", Control.__module__)
# Reached by imports, but they only show or record.
_ASIDE = {
    "gradleak", "gradleak.core.environment", "gradleak.core.progress", "gradleak.version", "gradleak.report.wording",
}  # fmt: skip


@functools.lru_cache(maxsize=1024)
def code_version(attack: str, defenses: tuple[str, ...]) -> str:
    """A hash of all source that an audit with this attack and these defences can reach."""
    modules = {ATTACKS.get(attack).__module__, *(type(one).__module__ for one in parse_defenses(list(defenses)))}
    found = hashlib.sha256()
    for name in sorted(reached((*SHARED, *modules))):
        found.update(f"{name} {_source_hash(name)}\n".encode())
    return found.hexdigest()[:32]


def reached(modules: Iterable[str]) -> set[str]:
    """These modules and all of this package that they import, directly or not; imports inside functions count."""
    found: set[str] = set()
    waiting = list(modules)
    while waiting:
        name = waiting.pop()
        if name not in found and name not in _ASIDE:
            found.add(name)
            waiting += _imports(name)
    return found


@functools.cache
def _imports(module: str) -> tuple[str, ...]:
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
