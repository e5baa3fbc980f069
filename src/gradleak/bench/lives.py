"""One life of a sweep: the command with its workers, seen from outside, and killed at a chosen moment."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Literal, Self

from gradleak.core.errors import GradleakError
from gradleak.experiments.runner.store import CELLS, LOG, PLAN

Victim = Literal["driver", "worker", "everything"]
VICTIMS: tuple[Victim, ...] = ("driver", "worker", "everything")
# What a life goes through, seen by what changes in the folder.
STAGES = ("starting", "planning", "starting workers", "running cells", "writing the table")
# Those in which there are workers.
WITH_WORKERS = (2, 3)
# Workers end by themselves when their driver is gone; those that have not after so many seconds count as left over.
PATIENCE = 60.0
# A life that takes longer hangs.
LONGEST_LIFE = 1800.0
LOOK_EVERY = 0.002
# Every process of a life carries it in its environment, whoever its parent has become.
_MARK = "GRADLEAK_BENCH_LIFE"


class Records:
    """What the folder of a sweep tells: which cells are finished, and what was logged since the last look."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._read = 0

    def finished(self) -> set[str]:
        return {path.stem for path in (self.folder / CELLS).glob("[!.]*.json")}

    def events(self) -> list[dict[str, Any]]:
        """Whole lines of the log that are new; they stay so until `forget`."""
        return [json.loads(line) for line in self._new().splitlines()]

    def forget(self) -> None:
        self._read += len(self._new())

    def _new(self) -> bytes:
        try:
            with (self.folder / LOG).open("rb") as log:
                log.seek(self._read)
                found = log.read()
                return found[: found.rfind(b"\n") + 1]  # a line that is being written comes with the next look
        except FileNotFoundError:
            return b""

    def stamps(self) -> list[int | None]:
        """When the folder and its plan were last changed."""
        return [_changed(self.folder), _changed(self.folder / PLAN)]


class Life:
    """`gradleak sweep` as a process; on leaving nothing of it is left."""

    def __init__(self, command: list[str], records: Records, cells: int, words: IO[bytes]) -> None:
        """`cells`: how many the plan has; what the command says goes to `words`."""
        self._records, self._cells = records, cells
        self._stamps, self._finished = records.stamps(), records.finished()
        self._mark = f"{_MARK}={uuid.uuid4().hex}"
        name, _, value = self._mark.partition("=")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "gradleak", *command],
            stdin=subprocess.DEVNULL,
            stdout=words,
            stderr=words,
            env={**os.environ, name: value},
            start_new_session=True,  # Ctrl-C is for the bench, which then ends it
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._kill_all()

    def stage(self) -> int:
        """How far it is, as a place in STAGES."""
        ended = {entry["cell"] for entry in self._records.events() if entry["event"] != "begun"}
        if len(self._finished | ended) == self._cells:
            return 4
        folder, plan = self._records.stamps()
        return 3 if ended else 2 if plan != self._stamps[1] else int(folder != self._stamps[0])

    def reach(self, stage: int) -> None:
        """Wait until it is so far, or has ended."""
        self._wait(lambda: self.stage() >= stage or self.process.poll() is not None)

    def kill(self, victim: Victim, rng: random.Random) -> bool:
        """Kill it, or a part of it; False if that was over already."""
        if victim == "worker":
            workers = self.workers() if self.process.poll() is None else []
            return bool(workers) and _kill(rng.choice(workers))
        if victim == "everything":
            self._kill_all()
        else:
            self.process.kill()
        return self.process.wait() == -signal.SIGKILL

    def end(self) -> int:
        """Its exit code, once it has come to its end by itself."""
        self._wait(lambda: self.process.poll() is not None)
        return self.process.wait()

    def left_over(self) -> int:
        """Workers that have not ended by themselves although their driver has."""
        _until(lambda: not self.workers(), PATIENCE)
        return len(self.workers())

    def workers(self) -> list[int]:
        """The numbers of its living worker processes. One that ended has no environment any more."""
        found = []
        for place in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                marked = self._mark.encode() in (place / "environ").read_bytes().split(b"\0")
                if marked and int(place.name) != self.process.pid:
                    found.append(int(place.name))
        return found

    def _kill_all(self) -> None:
        self.process.kill()
        while workers := self.workers():  # one may have been just about to start
            for worker in workers:
                _kill(worker)
        self.process.wait()

    def _wait(self, over: Callable[[], bool]) -> None:
        if not _until(over, LONGEST_LIFE):
            raise GradleakError(f"the sweep in {self._records.folder} hangs: no end after {LONGEST_LIFE:.0f} s")


def can_look() -> None:
    """Refuse systems on which workers cannot be found."""
    if not Path("/proc/self/environ").is_file():
        raise GradleakError("this bench finds worker processes in /proc, which this system does not have")


def _until(over: Callable[[], bool], seconds: float) -> bool:
    """Wait for something; False if it has not come about in time."""
    deadline = time.monotonic() + seconds
    while not over():
        if time.monotonic() > deadline:
            return False
        time.sleep(LOOK_EVERY)
    return True


def _kill(process: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)
        return True
    return False


def _changed(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return None
