"""One worker as seen from outside: a process that is given cells, watched, and killed when it goes too far."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gradleak.core.budget import LimitName
from gradleak.core.memory import free_memory
from gradleak.core.privacy import private, redacting
from gradleak.experiments.runner.cell import EndedCell, Ends, Group, Limits, Part, Work
from gradleak.experiments.runner.running import ended

# An attack stops itself at its time limit. One that hangs in a library call is killed after half as long again, and
# at least this many seconds later.
GRACE = 60.0


# The share of its memory limit that an attack plans with; the model and the interpreter need the rest.
PLANNED = 0.5


def planned_memory(limits: Limits, device: str, workers: int) -> int | None:
    """Bytes that the attacks of one of so many workers on a machine plan with; None on other devices."""
    if device != "cpu":
        return None
    own = limits.bytes
    return int(PLANNED * own) if own is not None else free_memory(torch.device("cpu")) // max(1, workers)


@dataclass(frozen=True)
class Death:
    """Why a worker is gone without an answer."""

    why: str


class Worker:
    """Starts its process on the first cell. `poll` tells how the cell ended, once it has."""

    def __init__(
        self, threads: int, memory: int | None, folder: str | None = None, woken: threading.Event | None = None
    ) -> None:
        """`memory` is what its attacks plan with, in bytes; `folder` is where paths of models and data begin.

        `woken` is set when there is something to `poll`.
        """
        self._work: Work | None = None
        self.what, self.share = "", 0.0
        self._settings = {"threads": threads, "memory": memory}
        self._folder = folder
        self._woken = woken or threading.Event()
        self._process: subprocess.Popen[bytes] | None = None

    # --- giving it work ---------------------------------------------------------------------------

    @property
    def cells(self) -> Group:
        """What it is at."""
        return () if self._work is None else self._work.cells

    def start(self, work: Work) -> None:
        """Begin a group of cells; the worker must be free."""
        assert self._work is None
        if self._process is None:
            self._launch()
        self._work = work
        self.what, self.share = "loading", 0.0
        self._started, self._loaded = time.monotonic(), False
        self._send(
            {
                "cells": [cell.model_dump(mode="json") for cell in work.cells],
                "limits": work.limits.model_dump(),
                "one_by_one": work.one_by_one,
                "turn": work.turn,
                "kept": [part.model_dump(mode="json") for part in work.kept.values()],
            }
        )

    def poll(self) -> Ends | Death | None:
        """How the cells ended, None while they go on. A worker that died is started anew with the next ones."""
        assert self._work is not None
        end = self._hear()
        if end is None:  # not merely empty: of cells whose turn is over none has ended
            end = self._watch(self._work)
        if end is not None:
            self._work = None
        return end

    def close(self) -> None:
        """End the process at once, whatever it is doing."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for stream in (self._process.stdin, self._process.stdout):
                with suppress(OSError):
                    stream.close()  # type: ignore[union-attr]
            self._words.close()
            self._process = None
        self._work = None

    # --- the process ------------------------------------------------------------------------------

    def _launch(self) -> None:
        threads = str(self._settings["threads"])
        packages = str(Path(__file__).parents[3])
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": threads,
            "MKL_NUM_THREADS": threads,
            "TOKENIZERS_PARALLELISM": "false",
            "PYTHONPATH": os.pathsep.join(filter(None, (packages, os.environ.get("PYTHONPATH")))),
        }
        self._words = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self._process = subprocess.Popen(
            [sys.executable, "-m", "gradleak.experiments.runner.serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._words,
            env=environment,
            cwd=self._folder,
            start_new_session=True,  # Ctrl-C is for the driver, which then ends its workers
        )
        self._fresh = True
        self._heard: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        threading.Thread(target=_listen, args=(self._process.stdout, self._heard, self._woken), daemon=True).start()
        self._send(self._settings)

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it died; `poll` will find that out
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()

    def _hear(self) -> Ends | Death | None:
        while True:
            try:
                message = self._heard.get_nowait()
            except queue.Empty:
                return None
            if message is None:
                return self._died()
            if message["event"] == "ended":
                self._fresh = False
                return [EndedCell.model_validate(cell) for cell in message["cells"]]
            if message["event"] == "part":
                self._tell(Part.model_validate(message["part"]))
            elif message["event"] == "loaded":
                self._loaded, self._started = True, time.monotonic()
            else:
                self.what, self.share = message["what"], message["share"]

    def _tell(self, part: Part) -> None:
        assert self._work is not None
        self._work.keep(part)

    def _died(self) -> Death:
        assert self._process is not None
        code = self._process.wait()
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        self._words.seek(0)
        lines = self._words.read().decode(errors="replace").strip().splitlines()
        with redacting(any(cell.job.spec.redact for cell in self.cells)):
            last = f": {private(lines[-1][:300])}" if lines else ""
        self.close()
        return Death(f"the worker died of {how}{last}")

    # --- its limits -------------------------------------------------------------------------------

    def _watch(self, work: Work) -> Ends | None:
        allowed, spent = work.limits.budget(len(work.cells)).seconds, time.monotonic() - self._started
        if self._loaded and allowed is not None and spent > allowed + max(GRACE, allowed / 2):
            return self._stopped(work, "time", f"did not stop at the limit of {work.limits.time} a cell")
        return self._too_large(work)

    def _too_large(self, work: Work) -> Ends | None:
        assert self._process is not None
        allowed = work.limits.bytes
        if allowed is None or resident(self._process.pid) <= allowed:
            return None
        if not self._fresh:  # what earlier cells left behind must not decide: once more, in a process of its own
            self.close()
            self.start(work)
            return None
        return self._stopped(work, "memory", f"needed more memory than {work.limits.memory}")

    def _stopped(self, work: Work, limit: LimitName, why: str) -> Ends:
        cells, spent = work.cells, time.monotonic() - self._started
        self.close()
        who = "the cell" if len(cells) == 1 else f"the cell with {len(cells) - 1} others of its group"
        error = f"{who} {why} and was killed"
        return [
            ended(cell, "budget-exhausted", work.limits, limit=limit, error=error, seconds=spent / len(cells))
            for cell in cells
        ]


def resident(pid: int) -> int:
    """Bytes of memory that a process holds; 0 where that is not known."""
    with suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    with suppress(OSError, ValueError, subprocess.SubprocessError):  # other systems than Linux
        done = subprocess.run(["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, text=True, timeout=5)
        return int(done.stdout) * 1024
    return 0


def _listen(stream: Any, heard: queue.SimpleQueue[dict[str, Any] | None], woken: threading.Event) -> None:
    with suppress(OSError, ValueError):
        for line in stream:
            heard.put(json.loads(line))
            woken.set()
    heard.put(None)
    woken.set()
