"""Files of tensors that other programs wrote, read where they can do no harm."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from gradleak.core.errors import GradleakError
from gradleak.core.progress import SILENT, Progress
from gradleak.core.reading import parse_table
from gradleak.core.tensor_files import read_tensors
from gradleak.core.unpack import SECONDS

KINDS = (".safetensors", ".pt", ".pth", ".bin")
SECONDS_OF_FIELDS = 60


def read_foreign(paths: Sequence[Path], progress: Progress = SILENT) -> list[dict[str, Tensor]]:
    """The floating-point tensors of files, read in a process of its own that a hostile file cannot get out of."""
    for path in paths:
        if not path.is_file():
            raise GradleakError(f"there is no file {path}")
        if path.suffix not in KINDS:
            raise GradleakError(f"{path} is not a {', '.join(KINDS[:-1])} or {KINDS[-1]} file")
    progress.begin(f"reading {', '.join(path.name for path in paths)}", 1)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "gradleak.core.unpack", folder, *map(str, paths)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
        except subprocess.TimeoutExpired as error:
            raise GradleakError(f"{paths[0]} could not be read within {SECONDS} s") from error
        if done.returncode:
            lines = done.stderr.strip().splitlines() or [f"reading {paths[0]} was ended by signal {-done.returncode}"]
            raise GradleakError(lines[-1])
        tensors = [_plain(path, Path(folder) / f"{number}.safetensors") for number, path in enumerate(paths)]
    progress.end()
    return tensors


def read_fields(path: Path) -> dict[str, Any]:
    """The plain values of one pickled object, such as a trainer's settings; nothing that it names is called."""
    if not path.is_file():  # a pipe would be waited for
        raise GradleakError(f"there is no file {path}")
    command = [sys.executable, "-m", "gradleak.core.plain_fields", str(path)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=SECONDS_OF_FIELDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise GradleakError(f"{path} could not be read within {SECONDS_OF_FIELDS} s") from error
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise GradleakError(lines[-1] if lines else f"reading {path} was ended by signal {-done.returncode}")
    try:
        return parse_table(done.stdout)
    except ValueError as error:
        raise GradleakError(f"cannot read {path}: {error}") from error


def _plain(path: Path, unpacked: Path) -> dict[str, Tensor]:
    try:
        return read_tensors(unpacked)
    except GradleakError as error:  # it names a file that the user has never seen
        raise GradleakError(str(error).replace(str(unpacked), str(path))) from error
