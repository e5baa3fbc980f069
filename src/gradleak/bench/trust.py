"""Whether a sweep survives being killed: `kill -9` at random moments, run again, and compare with a quiet run.

It also tells whether the disk under a folder keeps its promises about locks and renames; shared disks of clusters do
not always.
"""

from __future__ import annotations

import math
import random
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gradleak.bench.lives import STAGES, VICTIMS, WITH_WORKERS, Life, Records, Victim, can_look
from gradleak.core.budget import Budget
from gradleak.core.errors import GradleakError
from gradleak.core.files import output_folder, write_text
from gradleak.core.progress import SILENT, Progress
from gradleak.experiments.experiment import RunOptions
from gradleak.experiments.specs import AttackChoice
from gradleak.experiments.sweep.run import sweep
from gradleak.experiments.sweep.spec import SweepSpec
from gradleak.experiments.sweep.table import CSV_FILE, JSON_FILE

# The quickest attacks that there are: the more cells a second, the more moments at which a kill could do harm.
ATTACKS = (
    AttackChoice(name="bag"),
    AttackChoice(name="tag", options={"steps": 1, "init_draws": 1, "init_orders": 0}),
)
# Every life is asked for so many seeds more than the one before, at least, so that each goes through all stages.
SEEDS_A_LIFE = 2
# Seconds between the beginning of a stage and the kill. Short ones are as likely as long ones (they are drawn on a
# logarithmic scale): a cell or a table is written in milliseconds, a worker is started in seconds.
SHORTEST, LONGEST = 0.001, 5.0


@dataclass(frozen=True)
class Trust:
    """What was seen over all lives of one sweep."""

    victims: Mapping[str, int]
    stages: Mapping[str, int]
    cells: int
    begun: int
    lost: int
    twice: int
    left_over: int
    stopped: int
    same_table: bool

    @property
    def kills(self) -> int:
        return sum(self.victims.values())

    @property
    def held(self) -> bool:
        return self.same_table and not (self.lost or self.twice or self.left_over or self.stopped)

    def __str__(self) -> str:
        workers = self.victims.get("worker", 0)
        same = "equal byte for byte to" if self.same_table else "DIFFERENT from"
        return "\n".join(
            [
                f"{self.kills} kills: {_counted(self.victims, VICTIMS)}",
                f"  while {_counted(self.stages, STAGES)}",
                f"{self.cells} cells: {self.begun} begun, {self.lost} finished ones lost, "
                f"{self.twice} run again after they were finished",
                f"{self.left_over} workers outlived their driver; "
                f"the sweep went on after {workers - self.stopped} of {workers} dead workers",
                f"table {same} that of a quiet run",
            ]
        )


def bench_trust(
    folder: Path,
    model: str,
    kills: int,
    *,
    workers: int = 2,
    together: int = 1,
    seed: int = 0,
    budget: Budget | None = None,
    progress: Progress = SILENT,
) -> Trust:
    """Kill the command `gradleak sweep` again and again, then run the same cells quietly; tell how they differ."""
    can_look()
    limit, rng = budget or Budget(), random.Random(seed)
    with output_folder(folder):
        if any(folder.iterdir()):
            raise GradleakError(f"{folder} is not empty; give a new folder")
        killed = _Killed(folder, model, workers, together)
        progress.begin("kills, then a quiet run", kills + 2, "runs")
        while killed.victims.total() < kills and not limit.over:
            killed.life(rng)
            progress.advance(killed.victims.total(), text=f"{len(killed.finished)} cells finished")
        killed.to_the_end()
        progress.advance(kills + 1)
        quiet = RunOptions(executor="inline")
        sweep(killed.config, folder / "quiet", options=quiet)  # whole, even if time is up
        progress.end()
    return Trust(
        victims=killed.victims,
        stages=killed.stages,
        cells=killed.config.count,
        begun=killed.begun,
        lost=killed.lost,
        twice=killed.twice,
        left_over=killed.left_over,
        stopped=killed.stopped,
        same_table=_tables(folder / "quiet") == _tables(folder / "killed"),
    )


class _Killed:
    """A sweep over all its lives, with an eye on what is finished and what is begun again."""

    def __init__(self, folder: Path, model: str, workers: int, together: int) -> None:
        self._file, self._words = folder / "sweep.yaml", folder / "output.txt"
        self._out, self._workers = folder / "killed", workers
        self._records = Records(self._out)
        values = {"models": [model], "attacks": ATTACKS, "trials": 1, "together": together}
        self._config = SweepSpec.model_validate(values)
        self._lives = 0
        self.victims: Counter[str] = Counter()
        self.stages: Counter[str] = Counter()
        self.finished: set[str] = set()
        self.begun = self.lost = self.twice = self.left_over = self.stopped = 0

    @property
    def config(self) -> SweepSpec:
        """What the last life was asked for; whole groups of cells, which more seeds do not change."""
        seeds = max(SEEDS_A_LIFE, self._config.together) * max(1, self._lives)
        return self._config.model_copy(update={"seeds": tuple(range(seeds))})

    def life(self, rng: random.Random) -> None:
        """Let the sweep go on until it, or a part of it, is killed."""
        self._lives += 1
        victim = rng.choice(VICTIMS)
        aim = rng.choice(WITH_WORKERS if victim == "worker" else range(len(STAGES)))
        delay = math.exp(rng.uniform(math.log(SHORTEST), math.log(LONGEST)))
        with self._started() as life:
            life.reach(aim)
            time.sleep(delay)
            stage = life.stage()
            if life.kill(victim, rng):
                self._count(life, victim, stage)
            elif life.end():
                raise self._error()
        self._look()

    def to_the_end(self) -> None:
        with self._started() as life:
            if life.end():
                raise self._error()
        self._look()

    def _started(self) -> Life:
        config = self.config
        write_text(self._file, config.model_dump_json(exclude_unset=True))  # JSON is YAML
        command = ["sweep", str(self._file), "--out", str(self._out), "--workers", str(self._workers)]
        with self._words.open("wb") as words:
            return Life(command, self._records, config.count, words)

    def _count(self, life: Life, victim: Victim, stage: int) -> None:
        self.victims[victim] += 1
        self.stages[STAGES[stage]] += 1
        if victim == "worker":
            self.stopped += life.end() != 0
        elif victim == "driver":
            self.left_over += life.left_over()

    def _look(self) -> None:
        """Compare what is on disk now with what was finished at the last look."""
        done, there = set(self.finished), self._records.finished()
        for entry in self._records.events():
            if entry["event"] == "begun":
                self.begun += 1
                self.twice += entry["cell"] in done
            else:
                done.add(entry["cell"])
        self._records.forget()
        self.lost += len(done - there)
        self.finished = there

    def _error(self) -> GradleakError:
        lines = self._words.read_text(errors="replace").strip().splitlines() or ["nothing"]
        return GradleakError(f"the sweep in {self._out} did not come to its end; its last words: {lines[-1]}")


def _tables(folder: Path) -> list[bytes]:
    return [(folder / name).read_bytes() for name in (CSV_FILE, JSON_FILE)]


def _counted(counts: Mapping[str, int], names: tuple[str, ...]) -> str:
    return ", ".join(f"{name} {counts.get(name, 0)}" for name in names)
