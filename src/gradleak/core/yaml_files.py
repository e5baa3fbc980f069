"""YAML files, read as hostile input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from gradleak.core.errors import GradleakError

MAX_BYTES = 1 << 20


class _PlainLoader(yaml.SafeLoader):
    """YAML without aliases: a few lines of them can stand for more values than any memory holds."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.MarkedYAMLError(problem="aliases (*name) are not supported")
        return super().compose_node(parent, index)


def read_yaml(path: Path) -> dict[str, Any]:
    """A mapping out of a YAML file, or a clear error."""
    try:
        if not path.is_file():
            raise GradleakError(f"no configuration file at {path}")
        if path.stat().st_size > MAX_BYTES:
            raise GradleakError(f"{path} is larger than a configuration can be")
        values = yaml.load(path.read_text(encoding="utf-8"), _PlainLoader)
    except OSError as error:
        raise GradleakError(f"cannot read {path}: {error.strerror}") from error
    # The library lets through what its converters of dates, numbers and tagged values stumble over.
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError, RecursionError) as error:
        problem = getattr(error, "problem", None) or "not readable"
        raise GradleakError(f"{path} is not valid YAML: {problem}") from error
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise GradleakError(f"{path} must be a list of `key: value` lines")
    return values
