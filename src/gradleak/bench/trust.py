"""Whether a sweep survives being killed: `kill -9` at random moments, run again, and compare with a quiet run.

It runs the command itself, in processes of its own, so that it also tells whether the disk under a folder keeps its
promises about locks and renames; shared disks of clusters do not always.
"""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from gradleak.budget import Budget
from gradleak.cells import Cells
from gradleak.errors import GradleakError
from gradleak.files import output_folder, write_text
from gradleak.progress import SILENT, Progress
from gradleak.runner.store import CELLS, LOG, Head
from gradleak.runner.table import CSV_FILE, JSON_FILE

SWEEP = """\
models: [{model}]
attacks: [bag, {{name: tag, options: {{steps: 3, init_draws: 2, init_orders: 0}}}}]
seeds: {seeds}
trials: 1
"""
# More than a life finishes on average, so that there is something left to kill.
CELLS_A_KILL = 5
# Most kills come after a life's first cell has ended, within the time of so many cells; the others before.
WINDOW, EARLY = 3.0, 0.25
LOOK_EVERY = 0.01


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
    folder: Path, model: str, kills: int, workers: int, seed: int, budget: Budget, progress: Progress = SILENT
) -> Trust:
    """Run a sweep quietly and another one that is killed again and again; tell how they differ."""
    with output_folder(folder):
        if any(folder.iterdir()):
            raise GradleakError(f"{folder} is not empty; give a new folder")
        seeds = CELLS_A_KILL * kills // 2
        file = write_text(folder / "sweep.yaml", SWEEP.format(model=json.dumps(model), seeds=seeds))
        quiet, killed = _Run(file, folder / "quiet", workers), _Run(file, folder / "killed", workers)
        progress.begin("a quiet run, then kills", kills + 1, "runs")
        quiet.to_the_end()
        rng, done = random.Random(seed), 0
        while done < kills and not budget.over and killed.killed_once(rng, WINDOW * quiet.cell_seconds()):
            done += 1
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

    def __init__(self, file: Path, folder: Path, workers: int) -> None:
        self.folder = folder
        self._command = [sys.executable, "-m", "gradleak", "sweep", str(file), "--out", str(folder)]
        self._command += ["--workers", str(workers)]
        self.finished: set[str] = set()
        self._read, self._first_end = 0, 1.0
        self.begun = self.lost = self.twice = 0

    def to_the_end(self) -> None:
        done = subprocess.run(self._command, capture_output=True, text=True)
        if done.returncode:
            raise GradleakError(f"the sweep failed: {(done.stderr or done.stdout).strip()[-300:]}")
        self._look()

    def killed_once(self, rng: random.Random, window: float) -> bool:
        """Start the sweep and kill it at a random moment; False if it was done before."""
        early = rng.random() < EARLY
        started = time.monotonic()
        process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        if early:
            time.sleep(rng.uniform(0, self._first_end))
        else:
            while process.poll() is None and not self._some_ended():
                time.sleep(LOOK_EVERY)
            self._first_end = time.monotonic() - started
            time.sleep(rng.uniform(0, window))
        alive = process.poll() is None
        process.kill()
        process.wait()
        self._look()
        return alive

    def cell_seconds(self) -> float:
        """How long a cell takes once everything is loaded."""
        cells = Cells(self.folder / CELLS)
        return statistics.median(head.seconds for head in map(partial(cells.read, kind=Head), self.finished) if head)

    def tables(self) -> list[bytes]:
        return [(self.folder / name).read_bytes() for name in (CSV_FILE, JSON_FILE)]

    def _some_ended(self) -> bool:
        return any(entry["event"] != "begun" for entry in self._news())

    def _news(self) -> list[dict[str, Any]]:
        """What was logged since the last look."""
        if not (self.folder / LOG).is_file():
            return []
        with (self.folder / LOG).open("rb") as stream:
            stream.seek(self._read)
            return [json.loads(line) for line in stream.read().splitlines(keepends=True) if line.endswith(b"\n")]

    def _look(self) -> None:
        """Compare what is on disk now with what was finished at the last look."""
        begun = [entry["cell"] for entry in self._news() if entry["event"] == "begun"]
        self._read = (self.folder / LOG).stat().st_size if (self.folder / LOG).is_file() else 0
        there = {path.stem for path in (self.folder / CELLS).glob("[!.]*.json")}
        self.begun += len(begun)
        self.lost += len(self.finished - there)
        self.twice += sum(name in self.finished for name in begun)
        self.finished |= there
