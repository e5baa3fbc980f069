"""One audit at several steps of a training, all on the same private batches."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from gradleak.audits.spec import AuditSpec
from gradleak.core.budget import Budget
from gradleak.core.environment import describe
from gradleak.core.errors import GradleakError
from gradleak.core.progress import SILENT, Progress
from gradleak.experiments.checkpoints.result import Checkpoint, Checkpoints
from gradleak.experiments.experiment import Experiment, Finished, RunOptions, raise_if_all_failed, run_experiment
from gradleak.experiments.runner.cell import Cell
from gradleak.experiments.runner.jobs import AuditJob
from gradleak.experiments.runner.plan import Planned
from gradleak.experiments.runner.subjects import Subjects
from gradleak.models.loading import resolve_device
from gradleak.scoring.interval import student
from gradleak.scoring.metrics import METRICS
from gradleak.training.checkpoints import all_models, read_metrics

_LEARNED = ("perplexity", "accuracy", "f1", "mcc")


class CheckpointAudits(Experiment[AuditSpec, Checkpoints]):
    """A spec × the models of a training, which lie in the folder `spec.model`."""

    kind = "checkpoints"

    def __init__(self, spec: AuditSpec, metric: str = "best_rougeL") -> None:
        optional = METRICS.get(metric).optional and metric not in spec.metrics
        super().__init__(spec.with_(metrics=(*spec.metrics, metric)) if optional else spec)
        self.metric = metric
        self.models = all_models(Path(spec.model))

    def jobs(self, subjects: Subjects) -> list[Planned]:
        spec = subjects.completed(self.spec)
        return [Planned(AuditJob(spec=spec.with_(model=str(place)))) for place in self.models.values()]

    def summarise(self, finished: Finished) -> Checkpoints:
        raise_if_all_failed(finished)
        points: list[Checkpoint] = []
        first: list[float] = []
        for (step, place), cell in zip(self.models.items(), finished.cells, strict=True):
            point, scores = self._point(step, place, cell, first, finished)
            points.append(point)
            first = first or scores
        return Checkpoints(
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            status=finished.status,
            environment=describe(resolve_device(self.spec.device)),
            spec=finished.subjects.completed(self.spec),
            metric=self.metric,
            points=points,
        )

    def _point(
        self, step: int, place: Path, cell: Cell, first: list[float], finished: Finished
    ) -> tuple[Checkpoint, list[float]]:
        """A checkpoint with what is measured of it so far, beside the scores of the first one measured."""
        end = finished.completed(cell)
        results = None if end is None else end.results
        if results is not None and self.metric not in results.summary:
            raise GradleakError("the texts that were drawn hold no named entities; choose another metric")
        trials = [] if results is None else results.trials
        scores = [trial.scores[self.metric] for trial in trials if self.metric in trial.scores]
        changes = [now - then for now, then in zip(scores, first, strict=True)] if scores and first else []
        point = Checkpoint(
            step=step,
            model=str(place),
            model_fingerprint=None if results is None else results.scenario.model_fingerprint,
            learned={name: value for name, value in read_metrics(place).items() if name in _LEARNED},
            leak=None if results is None else results.summary[self.metric],
            control=None if results is None else results.control[self.metric],
            change=student(changes, -100, 100) if changes else None,
            cell=cell.id,
        )
        return point, scores


def audit_checkpoints(
    spec: AuditSpec,
    out: str | Path,
    *,
    metric: str = "best_rougeL",
    options: RunOptions | None = None,
    budget: Budget | str | float | None = None,
    progress: Progress = SILENT,
) -> Checkpoints:
    """Run one audit on every checkpoint of the training that lies in the folder `spec.model`.

    Finished audits lie in `out/cells` and are not run again, whichever metric is asked for.
    """
    experiment = CheckpointAudits(spec, metric)
    return run_experiment(experiment, out, options=options, budget=budget, progress=progress)
