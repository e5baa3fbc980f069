"""Weights that other training left: a file, a folder of a model, or a folder of adapters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from gradleak.core.errors import GradleakError
from gradleak.core.foreign import KINDS, read_foreign
from gradleak.core.progress import SILENT, Progress
from gradleak.core.tensor_files import FLOATS, OTHERS, read_header, read_tensors
from gradleak.models.checkpoint import SINGLE, check_files, check_precision, weight_files
from gradleak.models.lora import CONFIG
from gradleak.models.lora import WEIGHTS as ADAPTER_WEIGHTS

# What trainers leave beside weights, in files that end like weights.
NOT = ("optimizer", "scheduler", "rng_state", "training_args", "scaler")
INDEX = ".index.json"


@dataclass(frozen=True)
class Weights:
    """Tensors in fp32 by the names that files gave them: of several sets all must be the same.

    `files` are the first file of each set.
    """

    path: Path
    files: tuple[Path, ...]
    sets: tuple[dict[str, Tensor], ...]

    @property
    def folder(self) -> Path:
        """The folder that the files lie in."""
        return self.files[0].parent

    @property
    def is_adapter(self) -> bool:
        return any(".lora_" in name for name in self.sets[0])

    @property
    def has_settings(self) -> bool:
        """Whether an adapter's settings lie beside its weights."""
        return self.is_adapter and (self.folder / CONFIG).is_file()


def read_weights(path: Path, progress: Progress = SILENT) -> Weights:
    """What a path of the user's holds: a file, or a folder with one set of weight files or several."""
    found = _candidates(path)
    return Weights(path, tuple(files[0] for files in found), tuple(_joined(files, progress) for files in found))


def _candidates(path: Path) -> list[tuple[Path, ...]]:
    """The files of each set of weights; nothing is read yet but lists of shards."""
    if not _is_folder(path):
        return [(path,)]  # whether it is there, and of which kind, is said when it is read
    check_files(path)
    for names in (ADAPTER_WEIGHTS, SINGLE):
        present = [name for name in names if any((path / each).exists() for each in (name, name + INDEX))]
        if present:
            return [weight_files(path, (name,)) for name in present]
    entries = sorted(path.iterdir())
    loose = [each for each in entries if each.suffix in KINDS and each.is_file() and not each.name.startswith(NOT)]
    if loose:
        return [(file,) for file in loose]
    inner = [each for each in entries if (each / CONFIG).is_file()]
    if len(inner) == 1:  # where peft puts adapters that have a name of their own
        return _candidates(inner[0])
    if inner:
        raise GradleakError(f"{path} holds {len(inner)} adapters: {inner[0].name}, {inner[1].name}, ...; name one")
    raise GradleakError(f"the folder {path} holds no weights: no {', '.join(KINDS[:-1])} or {KINDS[-1]} file of them")


def _joined(files: Sequence[Path], progress: Progress) -> dict[str, Tensor]:
    whole: dict[str, Tensor] = {}
    plain = all(file.suffix == ".safetensors" and file.is_file() for file in files)
    parts = [_read(file) for file in files] if plain else read_foreign(files, progress)
    for file, part in zip(files, parts, strict=True):
        twice = next((name for name in part if name in whole), None)
        if twice is not None:
            raise GradleakError(f"{file} holds the tensor {twice[:80]!r}, which another weight file holds too")
        whole |= part
    return whole


def _read(file: Path) -> dict[str, Tensor]:
    """A safetensors file, which needs no process of its own: nothing in it can act."""
    check_precision(file, read_header(file, FLOATS | OTHERS))
    return read_tensors(file, FLOATS | OTHERS)


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError) as error:
        raise GradleakError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
