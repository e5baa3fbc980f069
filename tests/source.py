"""What modules of gradleak import, read from their source: nothing is run, so lazy imports count too."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import gradleak

ROOT = Path(gradleak.__file__).parent
# A module named in a text, as registries do ("gradleak.attacks.auto:Auto") and `import_module` takes it.
NAMED = re.compile(r"(gradleak(?:\.\w+)+)(?::[\w.]+)?")


@dataclass(frozen=True)
class Import:
    """A name that is imported, as far as it is known; of `from a import b` both `a` and `a.b` are."""

    name: str
    only_for_types: bool = False

    def of(self, package: str) -> bool:
        return f"{self.name}.".startswith(f"{package}.")


@functools.cache
def modules() -> dict[str, Path]:
    """Every module of gradleak and its file; a package is its `__init__.py`."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(source: str, package: str) -> set[Import]:
    """Every import of a source text, also inside functions; relative ones are resolved against its package."""
    return set(_imports(ast.parse(source), package, only_for_types=False))


@functools.cache
def imports_of(module: str) -> frozenset[Import]:
    path = modules()[module]
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    return frozenset(imports(path.read_text(encoding="utf-8"), package))


def reached(start: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """All modules that these import, directly or not, each with the way to it; the root package is not gone through.

    `gradleak/__init__.py` gives every public name on first use, so who imports from it must be looked at itself.
    """
    known = modules()
    ways = {module: (module,) for module in start}
    waiting = list(ways)
    while waiting:
        module = waiting.pop()
        for each in imports_of(module):
            if each.name in known and each.name not in ways and each.name != "gradleak":
                ways[each.name] = (*ways[module], each.name)
                waiting.append(each.name)
    return ways


def _imports(node: ast.AST, package: str, only_for_types: bool) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        yield from (Import(alias.name, only_for_types) for alias in node.names)
        if any(
            alias.name == "gradleak" or (alias.name.startswith("gradleak.") and not alias.asname)
            for alias in node.names
        ):
            yield Import("gradleak.*", only_for_types)  # the root package has a name then, and hands out all others
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            above = package.split(".")[: len(package.split(".")) - node.level + 1]
            base = ".".join([*above, *([node.module] if node.module else [])])
        yield Import(base, only_for_types)
        yield from (Import(f"{base}.{alias.name}", only_for_types) for alias in node.names)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        named = NAMED.fullmatch(node.value)
        if named and named[1] in modules():
            yield Import(named[1], only_for_types)
    elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        for each in node.body:
            yield from _imports(each, package, only_for_types=True)
        for each in node.orelse:
            yield from _imports(each, package, only_for_types)
    else:
        for each in ast.iter_child_nodes(node):
            yield from _imports(each, package, only_for_types)
