"""YAML files, read as hostile input."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

import yaml

from gradleak.core.errors import GradleakError
from gradleak.core.parameters import BITS
from gradleak.core.reading import read_text, unique

MAX_BYTES = 1 << 20
# A number of a configuration; those without end take time to read and cannot be printed.
LONGEST_NUMBER = 60


class _PlainLoader(yaml.SafeLoader):
    """YAML without aliases, keys given twice and numbers without end.

    A few lines of aliases can stand for more values than any memory holds.
    """

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.MarkedYAMLError(problem="aliases (*name) are not supported")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        keys = [key for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        try:
            unique([(self.construct_object(key), None) for key in keys])
        except ValueError as error:
            raise yaml.MarkedYAMLError(problem=str(error)) from error
        return super().construct_mapping(node, deep)

    def construct_whole(self, node: Any) -> int:
        value = self._short(node).construct_yaml_int(node)
        return value if value.bit_length() <= BITS else self._refuse(node)

    def construct_real(self, node: Any) -> float:
        return self._short(node).construct_yaml_float(node)

    def _short(self, node: Any) -> _PlainLoader:
        return self if len(node.value) <= LONGEST_NUMBER else self._refuse(node)

    def _refuse(self, node: Any) -> NoReturn:
        raise yaml.MarkedYAMLError(problem=f"the number {node.value[:20]}... is too large")


_PlainLoader.add_constructor("tag:yaml.org,2002:int", _PlainLoader.construct_whole)
_PlainLoader.add_constructor("tag:yaml.org,2002:float", _PlainLoader.construct_real)


def read_yaml(path: Path) -> dict[str, Any]:
    """A mapping out of a YAML file, or a clear error."""
    text = read_text(path, MAX_BYTES, absent=f"no configuration file at {path}")
    try:
        values = yaml.load(text, _PlainLoader)
    # The library lets through what its converters of dates, numbers and tagged values stumble over.
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError, RecursionError) as error:
        problem = getattr(error, "problem", None) or "not readable"
        raise GradleakError(f"{path} is not valid YAML: {problem}") from error
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise GradleakError(f"{path} must be a list of `key: value` lines")
    return values
