"""`gradleak.sweep`: every combination of what is listed, and one table of all."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

from gradleak.core.budget import Budget
from gradleak.core.errors import GradleakError
from gradleak.core.progress import SILENT, Progress
from gradleak.experiments.experiment import Experiment, Finished, RunOptions, run_experiment
from gradleak.experiments.runner.jobs import AuditJob
from gradleak.experiments.runner.plan import Planned
from gradleak.experiments.runner.subjects import Subjects
from gradleak.experiments.sweep.spec import SweepSpec, load_sweep
from gradleak.experiments.sweep.table import Line, table_lines, write_table


@dataclass(frozen=True)
class SweepResult:
    """A sweep's table, where it lies, and how its cells ended."""

    folder: Path
    lines: list[Line]

    @property
    def statuses(self) -> dict[str, int]:
        """How many cells ended how."""
        return dict(Counter(line["status"] for line in self.lines))


class Sweep(Experiment[SweepSpec, SweepResult]):
    kind = "sweep"
    seeds = "derived"

    def jobs(self, subjects: Subjects) -> list[Planned]:
        """Up to `together` cells of one model and attack run together, in the order of the plan."""
        counts: Counter[str] = Counter()
        planned = []
        for audit in self.spec.audits():
            spec = subjects.completed(audit)
            alike = json.dumps([spec.model, spec.task, spec.num_labels, spec.lora, spec.attack_label], default=str)
            key = None if self.spec.together == 1 else (alike, counts[alike] // self.spec.together)
            counts[alike] += 1
            planned.append(Planned(AuditJob(spec=spec), key))
        return planned

    def summarise(self, finished: Finished) -> SweepResult:
        lines = table_lines(finished)
        write_table(lines, finished.folder)
        return SweepResult(finished.folder, lines)


def sweep(
    spec: SweepSpec | str | Path,
    out: str | Path | None = None,
    *,
    options: RunOptions | None = None,
    budget: Budget | str | float | None = None,
    progress: Progress = SILENT,
) -> SweepResult:
    """Run every cell of a sweep that is not finished yet, and write the table of all.

    `spec` may be the path of a sweep.yaml. `options` say how many workers run the cells, and where.
    """
    spec = spec if isinstance(spec, SweepSpec) else load_sweep(Path(spec))
    chosen = out or spec.out
    if chosen is None:
        raise GradleakError("a sweep needs a folder: out in its file, or --out")
    return run_experiment(Sweep(spec), chosen, options=sweep_options(spec, options), budget=budget, progress=progress)


def sweep_options(spec: SweepSpec, options: RunOptions | None = None) -> RunOptions:
    """How its cells are run: threads and limits are the file's."""
    return replace(options or RunOptions(), threads=spec.threads, limits=spec.limits)
