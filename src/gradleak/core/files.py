"""Writing that is private and never half-done: a temporary file beside the target, then a rename."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

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
        if target.exists() and not target.is_file():  # a rename would put a file in the place of a device or a pipe
            raise GradleakError(f"cannot write {target}: it is there and is no regular file")
        # mkstemp creates the file with mode 0600, which the rename keeps.
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        raise GradleakError(f"cannot write {target}: {getattr(error, 'strerror', None) or error}") from error
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
    with replacing(target) as scratch:
        fill_text(scratch, text)
    return target


def fill_text(scratch: Path, text: str) -> None:
    """What `write_text` does to the temporary file that `replacing` yields, for files that must appear together."""
    with scratch.open("w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())


def fill_tensors(scratch: Path, tensors: Mapping[str, Any]) -> None:
    """The same for tensors, as safetensors."""
    from gradleak.core.tensor_files import one_by_one
    from gradleak.core.tensor_writer import TensorWriter

    with scratch.open("wb") as stream:
        writer = TensorWriter(stream, sorted(tensors))
        for name, tensor in one_by_one(tensors):
            writer.add(name, tensor)
        writer.finish()


def fill_state(scratch: Path, state: Mapping[str, Any]) -> None:
    """The same for the state of a training, as torch keeps it."""
    import torch

    try:
        with scratch.open("wb") as stream:
            torch.save(dict(state), stream)
    except RuntimeError as error:  # nor is it here, but it stands behind one
        raise error.__context__ if isinstance(error.__context__, OSError) else OSError(str(error)) from error


@contextmanager
def filling(folder: str | Path) -> Iterator[Path]:
    """Yield an empty folder; on success its files become private files of `folder`, on failure none of them does."""
    with output_folder(folder) as place, tempfile.TemporaryDirectory(dir=place, prefix=".") as scratch:
        yield Path(scratch)
        try:
            for file in sorted(path for path in Path(scratch).rglob("*") if path.is_file()):
                target = place / file.relative_to(scratch)
                target.parent.mkdir(parents=True, exist_ok=True)
                file.chmod(PRIVATE)
                file.replace(target)
        except OSError as error:
            raise GradleakError(f"cannot write to the folder {place}: {error.strerror}") from error


def beside(folder: Path, ending: str) -> Path:
    """A place beside a folder, under its name with another ending.

    >>> beside(Path("runs/a"), ".truth.json").as_posix()
    'runs/a.truth.json'
    >>> beside(Path("runs/.."), ".truth.json")
    Traceback (most recent call last):
    gradleak.core.errors.GradleakError: 'runs/..' has no name that a file beside it could carry; name a folder
    """
    if folder.name in ("", ".."):
        raise GradleakError(f"{str(folder)!r} has no name that a file beside it could carry; name a folder")
    return folder.with_name(f"{folder.name}{ending}")


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
