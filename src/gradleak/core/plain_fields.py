"""Reads the plain values of one pickled object, in a process of its own: python -m gradleak.core.plain_fields FILE.

Trainer pickles its settings (training_args.bin). Unpickling as usual would import and call whatever the file names.
Here every name in it stands for one inert class that keeps what it is given and does nothing, so numbers and texts
come out and nothing is imported or called. `gradleak.core.foreign` starts it.
"""

from __future__ import annotations

import io
import json
import pickle
import sys
import zipfile
from pathlib import Path
from typing import Any

from gradleak.core.output import say
from gradleak.core.process_limits import limit
from gradleak.core.unpack import MORE, SECONDS, TIMES

# In bytes: of the file, and of the pickle inside. Settings have some thousand.
MOST = 1 << 20
LONGEST_TEXT = 200


class Inert:
    """Stands for every class and function that a pickle names: takes anything, does nothing."""

    def __new__(cls, *given: Any, **named: Any) -> Inert:
        made = super().__new__(cls)
        made.given, made.fields = given, {}
        return made

    def __init__(self, *given: Any, **named: Any) -> None:
        self.given: tuple[Any, ...]
        self.fields: dict[Any, Any]

    def __setstate__(self, state: Any) -> None:
        parts = state if isinstance(state, tuple) else (state,)
        for part in parts:
            if isinstance(part, dict):
                self.fields.update(part)

    def __setitem__(self, key: Any, value: Any) -> None:
        pass

    def append(self, value: Any) -> None:
        pass

    def extend(self, values: Any) -> None:
        pass

    def add(self, value: Any) -> None:
        pass


class Reader(pickle.Unpickler):
    """An unpickler that knows no name."""

    def find_class(self, module: str, name: str) -> Any:
        return Inert

    def persistent_load(self, pid: Any) -> Any:
        return Inert()


def plain_fields(source: Path) -> dict[str, Any]:
    """The fields of the pickled object that are numbers, texts or truth values; an enumeration is its value."""
    raw = source.read_bytes()
    if len(raw) > MOST:
        raise ValueError(f"it is larger than {MOST:,} bytes")
    if zipfile.is_zipfile(io.BytesIO(raw)):
        raw = _pickle_of(raw)
    loaded = Reader(io.BytesIO(raw)).load()
    fields = loaded.fields if isinstance(loaded, Inert) else loaded if isinstance(loaded, dict) else {}
    found = {name: _plain(value) for name, value in fields.items() if isinstance(name, str)}
    return {name[:LONGEST_TEXT]: value for name, value in found.items() if value is not None}


def _pickle_of(raw: bytes) -> bytes:
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        entry = next((each for each in archive.infolist() if each.filename.endswith("data.pkl")), None)
        if entry is None or entry.file_size > MOST:
            raise ValueError("it holds no pickle of settings")
        with archive.open(entry) as stream:
            return stream.read(MOST)


def _plain(value: Any) -> bool | int | float | str | None:
    if isinstance(value, Inert) and len(value.given) == 1:
        value = value.given[0]  # an enumeration: its class, called with its value
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if value.bit_length() <= 63 else None
    if isinstance(value, float):
        return value
    return value[:LONGEST_TEXT] if isinstance(value, str) else None


def main() -> None:
    source = Path(sys.argv[1])
    limit(TIMES * MOST + MORE, SECONDS, TIMES * MOST + MORE)
    try:
        text = json.dumps(plain_fields(source))
    except Exception as error:  # whatever a malformed file provokes is the file's fault, and one line
        sys.exit(f"cannot read {source}: {' '.join(str(error).split())[:200] or type(error).__name__}")
    say(text)


if __name__ == "__main__":
    main()
