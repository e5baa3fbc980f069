"""JSON read as hostile input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gradleak.core.errors import GradleakError


def parse_json(raw: bytes) -> Any:
    """A JSON text in which no table has a key twice; whatever is wrong with it is a `ValueError`.

    >>> parse_json(b'{"a": [1]}')
    {'a': [1]}
    >>> parse_json(b'{"a": 1, "a": 2}')
    Traceback (most recent call last):
    ValueError: it has the key 'a' twice
    """
    try:
        parsed = json.loads(raw, object_pairs_hook=_table)
        json.dumps(parsed, ensure_ascii=False).encode()  # half of a surrogate pair is no character
    except UnicodeError as error:
        raise ValueError("it is not text in UTF-8") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not JSON (line {error.lineno}: {error.msg})") from error
    except RecursionError as error:
        raise ValueError("its tables are nested too deeply") from error
    return parsed


def read_json_table(path: Path, most: int) -> dict[str, Any]:
    """The table that a JSON file of at most so many bytes holds."""
    try:
        if not path.is_file():
            raise GradleakError(f"{path} is not a file")
        if path.stat().st_size > most:
            raise GradleakError(f"{path} has more than {most:,} bytes")
        table = parse_json(path.read_bytes())
    except OSError as error:
        raise GradleakError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise GradleakError(f"cannot read {path}: {error}") from error
    if not isinstance(table, dict):
        raise GradleakError(f"cannot read {path}: it is not a table")
    return table


def _table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for key, value in pairs:
        if key in table:
            raise ValueError(f"it has the key {key[:80]!r} twice")
        table[key] = value
    return table
