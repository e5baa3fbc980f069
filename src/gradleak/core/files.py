"""Writing that is private and never half-done: a temporary file beside the target, then a rename."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gradleak.core.errors import GradleakError

PRIVATE = 0o600


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """Yield a private temporary path; on success it becomes `target` in one step, on failure it is removed.

    >>> import tempfile
    >>> place = Path(tempfile.mkdtemp()) / "a.txt"
    >>> with replacing(place) as scratch:
    ...     _ = scratch.write_text("hello")
    >>> place.read_text(), oct(place.stat().st_mode & 0o777)
    ('hello', '0o600')
    """
    try:
        # mkstemp creates the file with mode 0600, which the rename keeps.
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    except OSError as error:
        raise GradleakError(f"cannot write {target}: {error.strerror}") from error
    os.close(handle)
    scratch = Path(name)
    try:
        yield scratch
        scratch.chmod(PRIVATE)
        scratch.replace(target)
    except OSError as error:
        raise GradleakError(f"cannot write {target}: {error.strerror or error}") from error
    finally:
        with suppress(FileNotFoundError):
            scratch.unlink()


def write_text(target: Path, text: str) -> Path:
    """Write a private text file in one step; once it has its name it is on the disk, even if the power fails."""
    with replacing(target) as scratch, scratch.open("w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    return target


@contextmanager
def output_folder(path: str | Path) -> Iterator[Path]:
    """The folder, made if needed and proved writable before any work is spent.

    If the work fails, a folder that was made for it and is still empty goes away again.
    """
    folder = Path(path)
    try:
        made = [place for place in (folder, *folder.parents) if not place.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder):
            pass
    except FileExistsError as error:
        raise GradleakError(f"cannot write to the folder {folder}: it is there and is no folder") from error
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        raise GradleakError(f"cannot write to the folder {folder}: {getattr(error, 'strerror', error)}") from error
    try:
        yield folder
    except BaseException:
        with suppress(OSError):
            for place in made:
                place.rmdir()
        raise
