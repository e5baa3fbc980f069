"""Attacks × defences, joined with what each defence costs: the frontier a practitioner chooses on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from gradleak.core.budget import Budget
from gradleak.core.environment import Environment, describe
from gradleak.core.files import write_text
from gradleak.core.progress import SILENT, Progress
from gradleak.defenses.chains import NONE
from gradleak.experiments.experiment import Experiment, ExperimentStatus, Finished, RunOptions, run_experiment
from gradleak.experiments.frontier.advice import advise
from gradleak.experiments.frontier.order import FrontierOrder
from gradleak.experiments.frontier.points import (
    AttackScore,
    Point,
    make_point,
    mark_front,
    score_of,
    score_so_far,
)
from gradleak.experiments.frontier.so_far import so_far
from gradleak.experiments.frontier.spec import FrontierSpec
from gradleak.experiments.runner.cell import Cell
from gradleak.experiments.runner.jobs import AuditJob
from gradleak.experiments.runner.loop import Order
from gradleak.experiments.runner.plan import Planned
from gradleak.experiments.runner.subjects import Subjects
from gradleak.experiments.utility import Metric, Utility, UtilityResults, UtilitySpec
from gradleak.models.base import Target
from gradleak.models.tasks import UNLABELLED
from gradleak.scoring.interval import Interval
from gradleak.scoring.scale import SCALES

FILE = "frontier.json"


class Frontier(BaseModel):
    """Every defence setting with its leak, its cost and the advice that follows."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    schema_version: Literal[2] = 2
    created: str
    status: ExperimentStatus
    environment: Environment
    spec: FrontierSpec
    model_fingerprint: str
    measure: str = Field(description="what the leak is measured by: rougeL, of images psnr")
    metric: Metric
    points: list[Point]
    control: Interval | None = Field(description="of guessing without the update, beside the undefended leak")
    untrained: Interval | None = Field(description="the metric before any training")
    majority: Interval | None = Field(description="the metric of always saying the commonest class")
    advice: str
    so_far: list[str] = Field([], description="what the unfinished settings show so far, and what they miss")

    def save(self, folder: Path) -> Path:
        """Write `frontier.json`, readable by its owner only."""
        return write_text(folder / FILE, self.model_dump_json(indent=2) + "\n")


class FrontierExperiment(Experiment[FrontierSpec, Frontier]):
    """A spec × attacks × defences, and the trainings that tell what the defences cost."""

    kind = "frontier"

    def __init__(self, spec: FrontierSpec) -> None:
        super().__init__(spec)
        self.utility = Utility(UtilitySpec(audit=spec.audit, rounds=spec.utility, defenses=spec.defenses))

    def jobs(self, subjects: Subjects) -> list[Planned]:
        """Every attack on every defence, then the trainings; they are run in turn."""
        audits = [
            subjects.completed(attack.on(self.spec.audit, defenses=chain))
            for chain in self.spec.defenses
            for attack in self.spec.attacks
        ]
        trainings = self.utility.jobs(subjects)  # also refuses defences that do not fit the model
        return [*(Planned(AuditJob(spec=spec)) for spec in audits), *trainings]

    def order(self, cells: Sequence[Cell], subjects: Subjects) -> Order:
        model = subjects.model(self.spec.audit)
        return FrontierOrder(
            cells, len(self.spec.attacks), len(self.spec.defenses), self.utility.seeds_used,
            SCALES[model.modality].metric, _metric(self.spec, model),
        )  # fmt: skip

    def summarise(self, finished: Finished) -> Frontier:
        width = len(self.spec.attacks)
        audits = finished.cells[: width * len(self.spec.defenses)]
        cost = self.utility.summarise(replace(finished, cells=finished.cells[len(audits) :]))
        labels = [attack.label for attack in self.spec.attacks]
        model = finished.subjects.model(self.spec.audit)
        measure = SCALES[model.modality].metric
        rows = [
            dict(zip(labels, (_score(cell, finished, measure) for cell in audits[i : i + width]), strict=True))
            for i in range(0, len(audits), width)
        ]
        return _joined(self.spec, model, rows, cost, finished.status)


def _metric(spec: FrontierSpec, model: Target) -> Metric:
    return "perplexity" if model.task in UNLABELLED else spec.metric


def _score(cell: Cell, finished: Finished, measure: str) -> AttackScore | None:
    end = finished.completed(cell)
    if end is not None and end.results is not None:
        return score_of(end.results, measure)
    return score_so_far(finished.trials_so_far(cell), cell.job.spec.trials, measure)


def _joined(
    spec: FrontierSpec,
    model: Target,
    audits: Sequence[dict[str, AttackScore | None]],
    cost: UtilityResults,
    status: ExperimentStatus,
) -> Frontier:
    metric = _metric(spec, model)
    plain, seeds = cost.settings[0], cost.rounds.seeds
    points = mark_front(
        [make_point(*pair, plain, metric, seeds) for pair in zip(audits, cost.settings, strict=True)], metric
    )
    floors = [floor[metric] for floor in (cost.untrained, cost.majority) if metric in floor]
    floor = max((floor.mean for floor in floors), default=None)
    return Frontier(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        status=status,
        environment=describe(model.device),
        spec=spec,
        model_fingerprint=model.fingerprint,
        measure=SCALES[model.modality].metric,
        metric=metric,
        points=points,
        control=next((p.score.control for p in points if p.label == NONE and p.score is not None), None),
        untrained=cost.untrained.get(metric),
        majority=cost.majority.get(metric),
        advice=advise(points, metric, floor, spec.tolerance),
        so_far=so_far(points, metric, floor, spec.tolerance),
    )


def frontier(
    spec: FrontierSpec,
    out: str | Path,
    *,
    model: Target | None = None,
    data: Any = None,
    options: RunOptions | None = None,
    budget: Budget | str | float | None = None,
    progress: Progress = SILENT,
) -> Frontier:
    """Attack every defence with every attack, train under every defence, and join the two.

    Finished audits and trainings lie in `out/cells` and are not run again, nor are finished trials of those that a
    budget cut short. What is not measured to its end is marked
    unfinished, and never counts as protection. `model` and `data` stand in for those that the spec names.
    """
    given = {"model": model, "data": data}
    return run_experiment(FrontierExperiment(spec), out, **given, options=options, budget=budget, progress=progress)
