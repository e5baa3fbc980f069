"""Whether a sweep survives being killed: `kill -9` at random moments, run again, and compare with a quiet run.

It also tells whether the disk under a folder keeps its promises about locks and renames; shared disks of clusters do
not always.
"""

from __future__ import annotations

import json
import os
import random
import signal
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradleak.budget import Budget
from gradleak.cells import Cells
from gradleak.errors import GradleakError
from gradleak.files import output_folder
from gradleak.progress import SILENT, Progress
from gradleak.runner.cell import Limits
from gradleak.runner.identity import plan_cells
from gradleak.runner.inline import InlineCrew
from gradleak.runner.plan import ModelSpec, SweepConfig
from gradleak.runner.running import run_cells
from gradleak.runner.store import CELLS, LOG, Head
from gradleak.runner.sweep import sweep
from gradleak.runner.table import CSV_FILE, JSON_FILE
from gradleak.tradeoff.config import AttackSpec

# The quickest attacks that there are: the more cells a second, the more moments at which a kill could do harm.
ATTACKS = (AttackSpec(name="bag"), AttackSpec(name="tag", options={"steps": 1, "init_draws": 1, "init_orders": 0}))
# Cells for every kill, and within how many cells' time of the start of a life it comes: some are left to the end.
CELLS_A_KILL, WINDOW = 4, 6.0


@dataclass(frozen=True)
class Trust:
    """What was seen over all lives of one sweep."""

    kills: int
    cells: int
    begun: int
    lost: int
    twice: int
    same_table: bool

    @property
    def held(self) -> bool:
        return self.same_table and not self.lost and not self.twice

    def __str__(self) -> str:
        same = "equal byte for byte to" if self.same_table else "DIFFERENT from"
        return (
            f"{self.cells} cells, {self.kills} kills: {self.begun} cells begun, {self.lost} finished cells lost, "
            f"{self.twice} run again after they were finished; table {same} that of a quiet run"
        )


def bench_trust(
    folder: Path,
    model: str,
    kills: int,
    *,
    workers: int = 0,
    seed: int = 0,
    budget: Budget | None = None,
    progress: Progress = SILENT,
) -> Trust:
    """Run a sweep quietly and another one that is killed again and again; tell how they differ.

    Without `workers` a life runs its cells itself, which is quick: a life is a fork of this process, with everything
    loaded. With workers these are processes of their own, which load everything anew.
    """
    limit = budget or Budget()
    config = SweepConfig(
        models=(ModelSpec(model=model),), attacks=ATTACKS, seeds=range(CELLS_A_KILL * kills // 2), trials=1
    )
    with output_folder(folder):
        if any(folder.iterdir()):
            raise GradleakError(f"{folder} is not empty; give a new folder")
        run_cells((plan_cells(config)[0],), Limits())  # everything loaded, for all lives
        quiet, killed = (_Run(config, folder / name, workers) for name in ("quiet", "killed"))
        progress.begin("a quiet run, then kills", kills + 1, "runs")
        quiet.to_the_end()
        window, rng, done = WINDOW * quiet.cell_seconds(), random.Random(seed), 0
        while done < kills and not limit.over:
            done += killed.life(kill_after=rng.uniform(0, window))
            progress.advance(done, text=f"{len(killed.finished)} cells finished")
        killed.to_the_end()
        progress.end()
    return Trust(
        kills=done,
        cells=len(quiet.finished),
        begun=killed.begun,
        lost=killed.lost,
        twice=killed.twice,
        same_table=quiet.tables() == killed.tables(),
    )


class _Run:
    """One sweep over all its lives, with an eye on what is finished and what is begun again."""

    def __init__(self, config: SweepConfig, folder: Path, workers: int) -> None:
        self._config, self.folder, self._workers = config, folder, workers
        self.finished: set[str] = set()
        self._read = 0
        self.begun = self.lost = self.twice = 0

    def to_the_end(self) -> None:
        if self.life():
            raise GradleakError(f"the sweep in {self.folder} did not come to its end")

    def life(self, kill_after: float | None = None) -> bool:
        """Let the sweep go on, in a process of its own; True if it was killed before its end."""
        process = _forked(self._sweep)
        if kill_after is not None:
            time.sleep(kill_after)
            os.kill(process, signal.SIGKILL)
        _, status = os.waitpid(process, 0)
        self._look()
        return status != 0

    def _sweep(self) -> None:
        crew = None if self._workers else InlineCrew(self._config.threads)
        sweep(self._config, self.folder, workers=self._workers or None, crew=crew)

    def cell_seconds(self) -> float:
        """How long a cell takes."""
        heads = (Cells(self.folder / CELLS).read(name, Head) for name in self.finished)
        return statistics.median(head.seconds for head in heads if head is not None)

    def tables(self) -> list[bytes]:
        return [(self.folder / name).read_bytes() for name in (CSV_FILE, JSON_FILE)]

    def _look(self) -> None:
        """Compare what is on disk now with what was finished at the last look."""
        begun = [entry["cell"] for entry in self._news() if entry["event"] == "begun"]
        there = {path.stem for path in (self.folder / CELLS).glob("[!.]*.json")}
        self.begun += len(begun)
        self.lost += len(self.finished - there)
        self.twice += sum(name in self.finished for name in begun)
        self.finished |= there

    def _news(self) -> list[dict[str, Any]]:
        """What was logged since the last look."""
        log = self.folder / LOG
        lines = log.read_bytes()[self._read :] if log.is_file() else b""
        self._read += len(lines)
        return [json.loads(line) for line in lines.splitlines()]


def _forked(work: Callable[[], None]) -> int:
    """The number of a new process that does this work and nothing else."""
    sys.stdout.flush()
    if process := os.fork():
        return process
    code = 1
    try:
        work()
        code = 0
    finally:
        os._exit(code)
