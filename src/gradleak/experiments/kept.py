"""Finished pieces of a long run: a file each, under a name that changes with everything that decides the result."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from gradleak.audits.results import FILE, Results, load_results
from gradleak.core.budget import Budget
from gradleak.core.errors import GradleakError
from gradleak.core.files import output_folder, write_text
from gradleak.data.texts import Row
from gradleak.models.text import TextModel
from gradleak.version import __version__

Kept = TypeVar("Kept", bound=BaseModel)

# What a model's configuration says of how it was saved, not of what it computes.
_ABOUT_FILES = ("transformers_version", "torch_dtype", "dtype", "architectures", "name_or_path")


def identity(name: str, decides: Mapping[str, Any]) -> str:
    """A readable file name with a digest.

    >>> identity("noise:sigma=0.1, seed 0", {"lr": 1}).startswith("noise-sigma-0-1-seed-0-")
    True
    """
    return f"{readable(name)}-{digest({**decides, 'version': __version__})[:12]}"


def readable(name: str) -> str:
    """A name as a file can have it.

    >>> readable("Noise: sigma=0.1")
    'noise-sigma-0-1'
    """
    return re.sub("[^a-z0-9]+", "-", name.lower()).strip("-")[:80]


def digest(decides: Mapping[str, Any]) -> str:
    """A hash of values, the same on every machine and in whatever order they are given."""
    return hashlib.sha256(json.dumps(decides, sort_keys=True, default=str).encode()).hexdigest()


def digest_rows(rows: Sequence[Row]) -> str:
    """A hash of all texts and labels."""
    found = hashlib.sha256()
    for row in rows:
        found.update(repr((row.text, row.label)).encode())
    return found.hexdigest()[:32]


def digest_model(model: TextModel) -> str:
    """A hash of the weights, the configuration and the tokenizer: all of a model that a result depends on."""
    config = {
        name: value
        for name, value in model.module.config.to_dict().items()
        if not name.startswith("_") and name not in _ABOUT_FILES
    }
    tokenizer = json.loads(model.tokenizer.backend_tokenizer.to_str())
    words = {name: value for name, value in tokenizer.items() if name not in ("padding", "truncation")}
    return digest({"weights": model.fingerprint, "task": model.task, "config": config, "tokenizer": words})[:32]


def kept_audit(place: Path, budget: Budget, run: Callable[[], Results]) -> Results | None:
    """An audit as it lies in its folder, or run now; None if the budget ended it: the next run does it whole."""
    (found,) = kept_audits([place], budget, lambda _: [run()])
    return found


def kept_audits(
    places: Sequence[Path], budget: Budget, run: Callable[[list[int]], list[Results]]
) -> list[Results | None]:
    """The same of several audits; `run` gets the numbers of those that are still to be done, all at once."""
    missing = [number for number, place in enumerate(places) if not (place / FILE).is_file()]
    if missing and not budget.over:
        for number, results in zip(missing, run(missing), strict=True):
            if results.status == "completed":
                with output_folder(places[number]):
                    results.save(places[number])
    return [load_results(place) if (place / FILE).is_file() else None for place in places]


class Cells:
    """A folder of finished cells; without a folder nothing is kept."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    def read(self, name: str, kind: type[Kept]) -> Kept | None:
        if self.folder is None or not (path := self.folder / f"{name}.json").is_file():
            return None
        try:
            return kind.model_validate_json(path.read_bytes())
        except OSError as error:  # it may be whole, so it must not be removed
            raise GradleakError(f"cannot read {path}: {error.strerror}") from error
        except ValidationError as error:
            raise GradleakError(f"{path} is not a cell of this run; remove it to have it measured again") from error

    def write(self, name: str, cell: BaseModel) -> None:
        if self.folder is not None:
            write_text(self.folder / f"{name}.json", cell.model_dump_json(indent=2) + "\n")
