"""Measuring a map: one audit a cell, all on the same private batches.

The cells of a layer are attacked in the same passes: each alone would leave most of a pass empty.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gradleak.audits.spec import AuditSpec
from gradleak.core.budget import Budget
from gradleak.core.environment import describe
from gradleak.core.errors import GradleakError
from gradleak.core.progress import SILENT, Progress
from gradleak.experiments.experiment import Experiment, Finished, RunOptions, raise_if_all_failed, run_experiment
from gradleak.experiments.map.grid import ALL, WHOLE, Place, column_name, places_of
from gradleak.experiments.map.result import LeakMap, MapCell
from gradleak.experiments.runner.cell import Cell
from gradleak.experiments.runner.jobs import AuditJob
from gradleak.experiments.runner.plan import Planned
from gradleak.experiments.runner.subjects import Subjects
from gradleak.models.base import Target
from gradleak.models.selection import count_parameters, selected, share_of
from gradleak.scoring.scale import SCALES


class Map(Experiment[AuditSpec, LeakMap]):
    """A spec × the part of the model that is observed."""

    kind = "map"

    def __init__(self, spec: AuditSpec) -> None:
        if spec.observe != ALL:
            raise GradleakError("a map observes every part of the model in turn; leave out observe")
        super().__init__(spec)

    def jobs(self, subjects: Subjects) -> list[Planned]:
        spec = subjects.completed(self.spec)
        self.places = places_of(subjects.model(spec))
        return [
            Planned(AuditJob(spec=spec.with_(observe=place.selection)), f"layer {place.layer}")
            for place in self.places
        ]

    def summarise(self, finished: Finished) -> LeakMap:
        raise_if_all_failed(finished)
        model = finished.subjects.model(self.spec)
        metric = SCALES[model.modality].metric
        return LeakMap(
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            status=finished.status,
            environment=describe(model.device),
            spec=finished.subjects.completed(self.spec),
            model_fingerprint=model.fingerprint,
            metric=metric,
            layers=model.layer_count,
            columns=[*map(column_name, model.layer_roles), WHOLE],
            cells=[
                _cell(place, cell, model, metric, finished)
                for place, cell in zip(self.places, finished.cells, strict=True)
            ],
        )


def leak_map(
    spec: AuditSpec,
    out: str | Path,
    *,
    model: Target | None = None,
    data: Any = None,
    options: RunOptions | None = None,
    budget: Budget | str | float | None = None,
    progress: Progress = SILENT,
) -> LeakMap:
    """Attack every module of every layer alone, every layer, all layers and the whole update.

    Finished audits lie in `out/cells` and are not run again. `model` and `data` stand in for those the spec names.
    """
    given = {"model": model, "data": data}
    return run_experiment(Map(spec), out, **given, options=options, budget=budget, progress=progress)


def _cell(place: Place, cell: Cell, model: Target, metric: str, finished: Finished) -> MapCell:
    names = selected(place.selection, model)
    end = finished.completed(cell)
    results = None if end is None else end.results
    return MapCell(
        **place.model_dump(),
        parameters=count_parameters(names, model),
        share=share_of(names, model),
        leak=None if results is None else results.summary[metric],
        control=None if results is None else results.control[metric],
        values=[] if results is None else [trial.scores[metric] for trial in results.trials],
        guesses=[] if results is None else [trial.control_scores[metric] for trial in results.trials],
        cell=cell.id,
    )
