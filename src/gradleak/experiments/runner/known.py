"""Hashes of models that were loaded before, so that an experiment that goes on need not load them all again to plan.

A model is taken to be the same if its files have the same names, sizes and times. Should that be wrong, nothing is:
every worker compares the hash of what it loaded with the plan's before it runs a cell.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict

from gradleak.core.asset_list import ASSETS
from gradleak.core.errors import GradleakError
from gradleak.core.files import write_text
from gradleak.core.identity import digest
from gradleak.core.reading import read_model

FILE = "models.json"


class KnownModels(BaseModel):
    """The form of models.json: hashes of models by what tells them apart without loading."""

    model_config = ConfigDict(extra="forbid")

    hashes: dict[str, str] = {}


def read_known(folder: Path) -> KnownModels:
    """What an experiment's folder knows; nothing if it was never written or cannot be read."""
    try:
        return read_model(folder / FILE, KnownModels, "a list of models")
    except GradleakError:
        return KnownModels()


def write_known(known: KnownModels, folder: Path) -> None:
    write_text(folder / FILE, known.model_dump_json(indent=1) + "\n")


def signature(name: str, settings: tuple[object, ...]) -> str | None:
    """What tells a model apart without loading it; None if nothing does, as with models of a hub."""
    if name in ASSETS:
        files = [(file.name, file.sha256) for file in ASSETS[name].files]
        return digest({"built in": name, "files": files, "settings": settings})
    try:
        if not Path(name).is_dir():
            return None
    except OSError:  # a name that no file can have
        return None
    stats = {path.name: path.stat() for path in sorted(Path(name).iterdir()) if path.is_file()}
    adapted = (Path(name) / "adapter_config.json").is_file()  # its weights lie elsewhere too
    times = {file: (stat.st_size, stat.st_mtime_ns) for file, stat in stats.items()}
    return None if adapted else digest({"folder": str(Path(name).resolve()), "files": times, "settings": settings})
