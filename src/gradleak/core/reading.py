"""Files read as hostile input: regular ones only, no longer than they can be, and no key of a table given twice."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from gradleak.core.errors import GradleakError
from gradleak.core.privacy import private

Model = TypeVar("Model", bound=BaseModel)

# Far more than the results of any audit, and little enough for the memory.
MOST_BYTES = 1 << 29


def read_bytes(path: Path, most: int = MOST_BYTES, *, absent: str | None = None) -> bytes:
    """All of a file, never waiting for it; `absent` is what to say if there is none.

    >>> read_bytes(Path("/dev/zero"))
    Traceback (most recent call last):
    gradleak.core.errors.GradleakError: cannot read /dev/zero: it is not a regular file
    """
    try:
        # To open a pipe would wait for somebody to write into it.
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            about = os.fstat(handle)
            if not stat.S_ISREG(about.st_mode):
                raise GradleakError(f"cannot read {path}: it is not a regular file")
            with os.fdopen(handle, "rb", closefd=False) as stream:
                content = stream.read(most + 1)
        finally:
            os.close(handle)
    except FileNotFoundError as error:
        raise GradleakError(absent or f"cannot read {path}: there is no such file") from error
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        raise GradleakError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    if len(content) > most:
        raise GradleakError(f"cannot read {path}: it is larger than {most:,} bytes")
    return content


def read_text(path: Path, most: int = MOST_BYTES, *, absent: str | None = None) -> str:
    """The same for text in UTF-8."""
    try:
        return read_bytes(path, most, absent=absent).decode("utf-8")
    except UnicodeError as error:
        raise GradleakError(f"{path} is not UTF-8 text") from error


def read_model(path: Path, kind: type[Model], what: str, most: int = MOST_BYTES, *, advice: str = "") -> Model:
    """A JSON file that gradleak wrote; `what` it should be and `advice` are for the message if it is not."""
    content = read_bytes(path, most)
    try:
        model = kind.model_validate_json(content)
        json.loads(content, object_pairs_hook=unique)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = private(".".join(str(part) for part in first["loc"])) or "the file"  # a table's key may be a word
        problem = f"{where}: {first['msg']}"
    except (ValueError, RecursionError) as error:  # a key given twice, or what only Python's reader stumbles over
        problem = private(str(error))
    else:
        return model
    raise GradleakError(f"{path} is not {what}" + (f"; {advice} ({problem})" if advice else f": {problem}"))


def parse_table(raw: bytes) -> dict[str, Any]:
    """The table of a JSON text in which none has a key twice; whatever is wrong with it is a `ValueError`.

    >>> parse_table(b'{"a": [1]}')
    {'a': [1]}
    >>> parse_table(b'{"a": 1, "a": 2}')
    Traceback (most recent call last):
    ValueError: it gives 'a' twice
    """
    try:
        parsed = json.loads(raw, object_pairs_hook=unique)
        json.dumps(parsed, ensure_ascii=False).encode()  # half of a surrogate pair is no character
    except UnicodeError as error:
        raise ValueError("it is not text in UTF-8") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not JSON (line {error.lineno}: {error.msg})") from error
    except RecursionError as error:
        raise ValueError("its tables are nested too deeply") from error
    if not isinstance(parsed, dict):
        raise ValueError("it is not a table")
    return parsed


def read_json_table(path: Path, most: int) -> dict[str, Any]:
    """The table that a JSON file of at most so many bytes holds, whoever wrote it."""
    content = read_bytes(path, most)
    try:
        return parse_table(content)
    except ValueError as error:
        raise GradleakError(f"cannot read {path}: {error}") from error


def unique(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    """A table of these pairs, for readers that would take the last of two values for one key.

    >>> unique([("a", 1), ("b", 2)])
    {'a': 1, 'b': 2}
    >>> unique([("a", 1), ("a", 2)])
    Traceback (most recent call last):
    ValueError: it gives 'a' twice
    """
    table = dict(pairs)
    if len(table) < len(pairs):
        keys = [key for key, _ in pairs]
        key = next(key for number, key in enumerate(keys) if key in keys[:number])
        raise ValueError(f"it gives {str(key)[:80]!r} twice")
    return table
