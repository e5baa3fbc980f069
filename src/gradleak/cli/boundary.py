"""Where an error becomes one line and an exit code.

What a user can mend says how, and ends with code 2. Anything else is a bug of ours: its line says where it happened
and where to report it, but not what the error said, which may quote private text.
"""

from __future__ import annotations

import os
import sysconfig
import traceback
from pathlib import Path

from gradleak.core.errors import GradleakError

DEBUG = "GRADLEAK_DEBUG"
REFUSED, BUG = 2, 70
# The command did its work, and what it found is to fail a pipeline: a leak, or a promise that is not kept.
FOUND = 3
REPORT = "please report it with this line to the project's issue tracker"
MEMORY = "there is not enough memory for this: take a smaller batch, a smaller model or fewer trials at once"


def debugging() -> bool:
    """Whether tracebacks are asked for."""
    return os.environ.get(DEBUG, "") not in ("", "0")


def told(error: Exception) -> tuple[str, int]:
    """What to print of an error on stderr, and the exit code.

    >>> told(GradleakError("there is no folder a"))
    ('gradleak: there is no folder a', 2)
    """
    said = refusal(error) or of_others(error)
    line = f"gradleak: {bug(error) if said is None else _printable(said)}"
    shown = "".join(traceback.format_exception(error)) if debugging() else ""
    return shown + line, BUG if said is None else REFUSED


def refusal(error: Exception) -> str | None:
    """What to say of an error that its user can mend; None for any other."""
    from pydantic import ValidationError
    from safetensors import SafetensorError

    if isinstance(error, OSError):
        named = [str(name) for name in (error.filename, error.filename2) if name is not None]
        return ": ".join([*named, error.strerror or str(error) or type(error).__name__])
    if isinstance(error, MemoryError) or _out_of_memory(error):
        return MEMORY
    if isinstance(error, RecursionError):
        return "something in the input is nested too deep"
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        return ": ".join([error.title, *(str(part) for part in first["loc"]), first["msg"]])
    return str(error) if isinstance(error, GradleakError | SafetensorError) else None


def of_others(error: Exception) -> str | None:
    """What to say of an error in an attack, a defence or a metric of somebody's own; None if none was at work."""
    theirs = [place for place in traceback.extract_tb(error.__traceback__) if _is_theirs(place.filename)]
    if not theirs:
        return None
    where = f"{Path(theirs[-1].filename).name}, line {theirs[-1].lineno}"
    return f"{type(error).__name__} in {where}, which is no part of gradleak; gradleak --debug ... shows what it said"


def _is_theirs(file: str) -> bool:
    """Whether a file is neither ours nor that of Python or an installed library."""
    place = Path(file)
    known = (Path(__file__).parents[1], Path(sysconfig.get_path("stdlib")))
    return (
        place.is_file()
        and not {"site-packages", "dist-packages"} & set(place.parts)
        and not any(place.is_relative_to(each) for each in known)
    )


def bug(error: Exception) -> str:
    """A line about an error that nobody foresaw."""
    places = traceback.extract_tb(error.__traceback__)
    where = f" in {Path(places[-1].filename).name}, line {places[-1].lineno}" if places else ""
    return f"this is a bug: {type(error).__name__}{where}; {REPORT}, or run gradleak --debug ... to see more"


def _out_of_memory(error: Exception) -> bool:
    """Whether torch found no memory, for which it has an error of its own only on some devices."""
    words = str(error) if isinstance(error, RuntimeError) else ""
    return type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in words or "out of memory" in words


def _printable(line: str) -> str:
    """The line without what could steer a terminal."""
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in line)
