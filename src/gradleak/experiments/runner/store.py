"""The folder of an experiment: finished cells, who is at work on which, and a log.

Nothing here trusts that a process lives on. A cell appears whole or not at all. A claim is a lock that the system
takes back when its owner dies, however it dies, so there is no heartbeat to miss and nothing stale to clean up.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict

from gradleak.core.budget import LimitName
from gradleak.core.errors import GradleakError
from gradleak.core.files import PRIVATE, output_folder, write_text
from gradleak.core.reading import read_model
from gradleak.experiments.runner.cell import EndedCell, Limits, Part, Status

CELLS, PARTS, CLAIMS, LOG, PLAN = "cells", "parts", "claims", "log.jsonl", "plan.json"

Kept = TypeVar("Kept", bound=BaseModel)

# Folders at work in this process. Its locks would not stop it from taking them twice, so it may have each once.
_open_here: set[Path] = set()


class Head(BaseModel):
    """How a cell ended, read without the trials: ten thousand cells are looked over in seconds."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    status: Status
    limit: LimitName | None = None
    limits: Limits = Limits()
    seconds: float


class Store:
    """The cells of one folder. `claim` before a cell is begun, `keep_part` under way, `keep` when it ended."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._place = folder.resolve()
        self._litter: dict[str, list[Path]] = defaultdict(list)

    def __enter__(self) -> Self:
        if self._place in _open_here:
            raise GradleakError(f"this process is already running an experiment in {self.folder}")
        with output_folder(self.folder / CELLS):
            pass
        try:
            self._claims = _open(self.folder / CLAIMS, os.O_RDWR)
            self._log = _open(self.folder / LOG, os.O_WRONLY | os.O_APPEND)
        except OSError as error:
            raise GradleakError(f"cannot write {error.filename}: {error.strerror}") from error
        _open_here.add(self._place)
        return self

    def __exit__(self, *_: object) -> None:
        _open_here.discard(self._place)
        os.close(self._claims)  # gives all claims free
        os.close(self._log)

    # --- what is there ----------------------------------------------------------------------------

    def names(self) -> dict[str, int]:
        """Every finished cell with the time at which it was written."""
        stamps = {}
        self._litter.clear()
        try:
            entries = list(os.scandir(self.folder / CELLS))
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise GradleakError(f"cannot read the folder {self.folder / CELLS}: {error.strerror}") from error
        for entry in entries:
            if entry.name.startswith("."):  # what a write left behind when its process was killed
                self._litter[entry.name[1:].partition(".json.")[0]].append(Path(entry.path))
            elif entry.name.endswith(".json"):
                stamps[entry.name.removesuffix(".json")] = entry.stat().st_mtime_ns
        return stamps

    def stamp(self, name: str) -> int | None:
        """When a cell was written; None if it is not there."""
        try:
            return (self.folder / CELLS / f"{name}.json").stat().st_mtime_ns
        except FileNotFoundError:
            return None

    def head(self, name: str) -> Head | None:
        return self.read(name, Head)

    def read(self, name: str, kind: type[Kept]) -> Kept | None:
        """A finished cell, or the part of it that `kind` wants; None if it is not there."""
        return read_cell(self.folder / CELLS / f"{name}.json", kind)

    def part(self, name: str) -> Part | None:
        """What there is of a cell that did not end; None if there is nothing."""
        return read_cell(self._part(name), Part)

    def _part(self, name: str) -> Path:
        return self.folder / PARTS / f"{name}.json"

    # --- who is at work ---------------------------------------------------------------------------

    def claim(self, name: str) -> bool:
        """Take a cell for this process; False if another process has it."""
        try:
            fcntl.lockf(self._claims, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _offset(name))
        except (BlockingIOError, PermissionError):
            return False
        except OSError as error:
            raise GradleakError(f"the folder {self.folder} cannot be locked: {error.strerror}") from error
        for left in self._litter.pop(name, ()):  # only the owner of a claim writes the cell, so this one is dead
            left.unlink(missing_ok=True)
        return True

    def release(self, name: str) -> None:
        fcntl.lockf(self._claims, fcntl.LOCK_UN, 1, _offset(name))

    # --- what happened ----------------------------------------------------------------------------

    def begin(self, name: str, attempt: int) -> None:
        """Note that a claimed cell is begun."""
        self._note(cell=name, event="begun", attempt=attempt)

    def keep_part(self, part: Part) -> None:
        """Write what there is of a claimed cell, so that it need not be done again."""
        with output_folder(self.folder / PARTS):
            write_text(self._part(part.id), part.model_dump_json() + "\n")

    def keep(self, cell: EndedCell) -> None:
        """Write a cell that ended and give it free. Its parts are needed no more, unless a limit cut it short."""
        write_text(self.folder / CELLS / f"{cell.id}.json", cell.model_dump_json(indent=2) + "\n")
        if cell.status == "completed":
            self._part(cell.id).unlink(missing_ok=True)
        self._note(cell=cell.id, event=cell.status, attempt=cell.attempts)
        self.release(cell.id)

    def _note(self, **what: Any) -> None:
        line = json.dumps({"time": round(time.time(), 3), "pid": os.getpid(), **what}) + "\n"
        try:
            os.write(self._log, line.encode())  # one write to a file in append mode is never torn by another's
        except OSError as error:
            raise GradleakError(f"cannot write {self.folder / LOG}: {error.strerror}") from error


class Plan(BaseModel):
    """The form of plan.json."""

    model_config = ConfigDict(extra="forbid")

    schema_version: int = 2
    kind: str
    settings: dict[str, Any]
    cells: list[str]
    trainings: list[str] = []  # those of the cells that are no audits


def read_plan(folder: Path) -> Plan:
    """What an experiment's folder was last asked to hold."""
    path = Path(folder) / PLAN
    if not path.exists():
        raise GradleakError(f"{folder} holds no {PLAN}; give the folder an experiment wrote")
    return read_model(path, Plan, "the plan of an experiment")


def read_cells(folder: str | Path) -> Iterator[EndedCell]:
    """The finished cells of an experiment's folder, in the order of its plan; those not finished are left out."""
    store = Store(Path(folder))
    for name in dict.fromkeys(read_plan(Path(folder)).cells):
        if (cell := store.read(name, EndedCell)) is not None:
            yield cell


def read_cell(path: Path, kind: type[Kept]) -> Kept | None:
    """The file of a cell, or the part of it that `kind` wants; None if it is not there."""
    if not path.exists():
        return None
    return read_model(path, kind, "a cell of this run", advice="remove it to have it measured again")


def _open(path: Path, how: int) -> int:
    return os.open(path, how | os.O_CREAT | os.O_CLOEXEC, PRIVATE)


def _offset(name: str) -> int:
    """The byte of the lock file that stands for a cell: from the hash its name ends in."""
    return int(name[-15:], 16)
