"""Measuring a training: one audit a checkpoint, all on the same private batches; finished ones are kept."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from gradleak.audits.redact import redact
from gradleak.audits.results import Results
from gradleak.audits.run import audit
from gradleak.audits.spec import AuditConfig
from gradleak.core.budget import Budget
from gradleak.core.environment import describe
from gradleak.core.errors import GradleakError
from gradleak.core.files import output_folder
from gradleak.core.progress import SILENT, Progress
from gradleak.core.registry import suggest
from gradleak.data.texts import read_data
from gradleak.experiments.checkpoints.result import Checkpoint, Checkpoints
from gradleak.experiments.kept import digest_rows, identity, kept_audit
from gradleak.models.load import load_text_model
from gradleak.models.loading import resolve_device
from gradleak.models.text import TextModel
from gradleak.report.wording import METRIC_NAMES
from gradleak.scoring.entities import NERR
from gradleak.scoring.interval import bootstrap
from gradleak.training.checkpoints import all_models, read_metrics

# Settings that do not change what is measured, and the model, which is each checkpoint's own.
_ASIDE = {"budget", "out", "redact", "device", "model", "data"}
_LEARNED = ("perplexity", "accuracy", "f1", "mcc")


def audit_checkpoints(
    config: AuditConfig,
    out: str | Path,
    *,
    metric: str = "best_rougeL",
    budget: Budget | None = None,
    progress: Progress = SILENT,
) -> Checkpoints:
    """Run one audit on every checkpoint of the training that lies in the folder `config.model`.

    Finished audits lie in `out/cells` and are not run again, whichever metric is asked for; what the budget cut short
    is not kept.
    """
    if metric not in METRIC_NAMES:
        raise GradleakError(f"unknown metric {metric!r}; {suggest(metric, METRIC_NAMES)}")
    if metric == NERR:
        config = config.model_copy(update={"entities": True})
    models = all_models(Path(config.model))
    limit = budget or Budget(config.seconds)
    with output_folder(out) as folder:
        run = _Run(config, folder, metric, limit, progress)
        points = [run.point(step, place) for step, place in models.items()]
    return Checkpoints(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        status="completed" if all(point.leak is not None for point in points) else limit.reason,
        environment=describe(resolve_device(config.device)),
        config=config,
        metric=metric,
        points=points,
    )


class _Run:
    """What all checkpoints share, and the first one's scores, which the later ones are compared with."""

    def __init__(self, config: AuditConfig, folder: Path, metric: str, budget: Budget, progress: Progress) -> None:
        self.config, self.folder, self.metric = config, folder, metric
        self.budget, self.progress = budget, progress
        self.rows = read_data(config.data, config.text_column, config.label_column)
        self.decides = {
            **config.model_dump(exclude=_ASIDE),
            "rows": digest_rows(self.rows),
            **({"redact": True} if config.redact else {}),  # audits kept with their texts are not what is asked for
        }
        self.first: list[float] | None = None

    def point(self, step: int, place: Path) -> Checkpoint:
        """The checkpoint with what is measured of it so far."""
        config = self.config
        model = load_text_model(
            place, task=config.task, num_labels=config.num_labels, device=config.device, progress=self.progress
        )
        home = Path("cells") / identity(f"step {step}", {**self.decides, "model": model.fingerprint})
        found = kept_audit(self.folder / home, self.budget, lambda: self._audit(model))
        if found is not None and self.metric not in found.summary:
            raise GradleakError("the texts that were drawn hold no named entities; choose another metric")
        scores = None if found is None else [t.scores[self.metric] for t in found.trials if self.metric in t.scores]
        before, self.first = self.first, self.first or scores
        return Checkpoint(
            step=step,
            model=str(place),
            model_fingerprint=model.fingerprint,
            learned={name: value for name, value in read_metrics(place).items() if name in _LEARNED},
            leak=None if found is None else found.summary[self.metric],
            control=None if found is None else found.control[self.metric],
            change=None
            if before is None or scores is None
            else bootstrap([now - then for now, then in zip(scores, before, strict=True)], floor=-100),
            folder=home.as_posix(),
        )

    def _audit(self, model: TextModel) -> Results:
        settings = self.config.model_dump(exclude={"budget", "out", "redact", "model"})
        found = audit(model, **settings, budget=self.budget, progress=self.progress)
        return redact(found) if self.config.redact else found
