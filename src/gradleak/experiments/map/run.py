"""Measuring a map: one audit a cell, all on the same private batches; finished ones are kept.

The cells of a layer are attacked in the same passes: each alone would leave most of a pass empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from gradleak.attacks import ATTACKS
from gradleak.audits.redact import redact
from gradleak.audits.results import Results
from gradleak.audits.run import Question, audit_together
from gradleak.audits.spec import AuditConfig
from gradleak.core.budget import Budget
from gradleak.core.environment import describe
from gradleak.core.errors import GradleakError
from gradleak.core.files import output_folder
from gradleak.core.progress import SILENT, Progress
from gradleak.data.texts import read_data
from gradleak.experiments.kept import digest_rows, identity, kept_audits
from gradleak.experiments.map.grid import WHOLE, Place, by_layer, column_name, plan
from gradleak.experiments.map.result import LeakMap, MapCell
from gradleak.models.load import load_text_model
from gradleak.models.selection import ALL, count_parameters, selected, share_of
from gradleak.models.text import TextModel

# Settings that do not change what a map shows, and the part of the model, which is each cell's own.
_ASIDE = {"budget", "out", "redact", "device", "model", "data", "observe", "entities"}


def leak_map(
    config: AuditConfig,
    out: str | Path,
    *,
    model: TextModel | None = None,
    budget: Budget | None = None,
    progress: Progress = SILENT,
) -> LeakMap:
    """Attack every module of every layer alone, every layer, all layers and the whole update.

    Finished audits lie in `out/cells` and are not run again; what the budget cut short is not kept. `model` stands
    in for the one the configuration names.
    """
    if config.observe != ALL:
        raise GradleakError("a map observes every part of the model in turn; leave out observe")
    limit = budget or Budget(config.seconds)
    with output_folder(out) as folder:
        target = model or load_text_model(
            config.model, task=config.task, num_labels=config.num_labels, device=config.device, progress=progress
        )
        run = _Run(config, target, folder, limit, progress)
        places = plan(target)
        found = {cell.selection: cell for group in by_layer(places) for cell in run.cells(group)}
        cells = [found[place.selection] for place in places]
    return LeakMap(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        status="completed" if all(cell.leak is not None for cell in cells) else limit.reason,
        environment=describe(target.device),
        config=config,
        model_fingerprint=target.fingerprint,
        layers=len(target.adapter.layers),
        columns=[*map(column_name, target.layer_roles), WHOLE],
        cells=cells,
    )


class _Run:
    """What all cells of one map share."""

    def __init__(
        self, config: AuditConfig, model: TextModel, folder: Path, budget: Budget, progress: Progress
    ) -> None:
        self.config, self.model, self.folder = config, model, folder
        self.budget, self.progress = budget, progress
        self.method = ATTACKS.get(config.attack).from_settings(config.options)
        self.rows = read_data(config.data, config.text_column, config.label_column)
        self.decides = {
            **config.model_dump(exclude=_ASIDE),
            "model": model.fingerprint,
            "task": model.task,
            "rows": digest_rows(self.rows),
            **({"redact": True} if config.redact else {}),  # audits kept with their texts are not what is asked for
        }

    def cells(self, places: Sequence[Place]) -> list[MapCell]:
        """These cells with what is measured of them so far."""
        names = [selected(place.selection, self.model) for place in places]
        homes = [
            Path("cells") / identity(place.selection, {**self.decides, "observe": own})
            for place, own in zip(places, names, strict=True)
        ]
        found = kept_audits(
            [self.folder / home for home in homes],
            self.budget,
            lambda missing: self._audit([places[number].selection for number in missing]),
        )
        return [self._cell(*each) for each in zip(places, names, homes, found, strict=True)]

    def _cell(self, place: Place, names: list[str], home: Path, found: Results | None) -> MapCell:
        return MapCell(
            **place.model_dump(),
            parameters=count_parameters(names, self.model),
            share=share_of(names, self.model),
            leak=None if found is None else found.summary["rougeL"],
            control=None if found is None else found.control["rougeL"],
            values=[] if found is None else [trial.scores["rougeL"] for trial in found.trials],
            guesses=[] if found is None else [trial.control_scores["rougeL"] for trial in found.trials],
            folder=home.as_posix(),
        )

    def _audit(self, parts: Sequence[str]) -> list[Results]:
        questions = [Question.of(self.config, self.rows, observe=part) for part in parts]
        found = audit_together(questions, self.model, self.method, budget=self.budget, progress=self.progress)
        return [redact(one) for one in found] if self.config.redact else found
