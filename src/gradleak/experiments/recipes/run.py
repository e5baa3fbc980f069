"""Running a recipe: one audit a line, and the paper's numbers beside ours."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gradleak.attacks import attacks_for
from gradleak.audits.results import Results
from gradleak.core.budget import Budget
from gradleak.core.errors import GradleakError
from gradleak.core.parameters import validated
from gradleak.core.progress import SILENT, Progress
from gradleak.data.corpora import in_folder
from gradleak.defenses.chains import parse_chains
from gradleak.experiments.experiment import (
    Experiment,
    ExperimentStatus,
    Finished,
    RunOptions,
    raise_if_all_failed,
    run_experiment,
)
from gradleak.experiments.recipes.recipe import Recipe, RecipeLine
from gradleak.experiments.runner.jobs import AuditJob
from gradleak.experiments.runner.plan import Planned
from gradleak.experiments.runner.subjects import Subjects
from gradleak.experiments.utility import Utility, UtilityResults, UtilitySpec
from gradleak.scoring.metrics import METRICS
from gradleak.training.rounds import RoundSettings


@dataclass(frozen=True)
class Reproduced:
    """The lines of a recipe that are measured to their end, and what the model learned where the recipe asks."""

    recipe: Recipe
    model: str
    status: ExperimentStatus
    folder: Path
    lines: list[tuple[RecipeLine, Results]]
    utility: UtilityResults | None


class RecipeExperiment(Experiment[Recipe, Reproduced]):
    """The lines of a recipe, those whose name matches a pattern if there is one."""

    kind = "recipe"

    def __init__(
        self,
        recipe: Recipe,
        *,
        data_dir: Path,
        changes: Mapping[str, Any] | None = None,
        only: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """`changes` are settings of the audit for all lines; `options` go to the attacks that have them."""
        wanted = tuple(name for name in recipe.metrics if METRICS.get(name).optional)
        audit = recipe.audit.with_(metrics=wanted, **(changes or {}))
        super().__init__(recipe.model_copy(update={"audit": audit}))
        self.data_dir, self.only, self.options = data_dir, only, dict(options or {})
        self.utility: Utility | None = None
        if recipe.utility is not None and only is None:  # what the model learns belongs to the whole table
            part = recipe.utility
            self.utility = Utility(
                UtilitySpec(
                    audit=self.audit.with_(data=self._place(part.data), metrics=()),
                    rounds=validated(RoundSettings, part.rounds, "utility"),
                    defenses=tuple(parse_chains([line.defenses for line in recipe.cells if line.defenses])),
                )
            )

    def jobs(self, subjects: Subjects) -> list[Planned]:
        layers = subjects.model(self.audit).layer_count
        every = [line for recipe_line in self.spec.cells for line in recipe_line.on(layers)]
        self.lines = [line for line in every if self.only is None or re.search(self.only, line.name, re.IGNORECASE)]
        if not self.lines:
            raise GradleakError(f"no line matches {self.only!r}; lines: {', '.join(line.name for line in every)}")
        planned = [Planned(self._job(line, subjects)) for line in self.lines]
        return planned + ([] if self.utility is None else self.utility.jobs(subjects))

    def _job(self, line: RecipeLine, subjects: Subjects) -> AuditJob:
        known = attacks_for(subjects.modality(self.audit)).get(line.attack).Options.model_fields
        own = {name: value for name, value in self.options.items() if name in known}
        chosen = line.model_dump(include={"attack", "batch_size", "client", "defenses", "observe"})
        trials = min(line.trials or self.audit.trials, self.audit.trials)
        spec = self.audit.with_(**chosen, data=self._place(line.data), options={**line.options, **own}, trials=trials)
        inverter = line.inverter
        if inverter is not None:
            places = {
                name: None if (n := getattr(inverter, name)) is None else self._place(n) for name in ("aux", "other")
            }
            inverter = inverter.model_copy(update=places)
        return AuditJob(spec=subjects.completed(spec), inverter=inverter)

    def _place(self, corpus: str) -> str:
        return in_folder(corpus, self.data_dir)

    def summarise(self, finished: Finished) -> Reproduced:
        raise_if_all_failed(finished)
        cells = finished.cells[: len(self.lines)]
        ends = [(line, finished.completed(cell)) for line, cell in zip(self.lines, cells, strict=True)]
        learned = None
        if self.utility is not None:
            learned = self.utility.summarise(replace(finished, cells=finished.cells[len(cells) :]))
        return Reproduced(
            recipe=self.spec,
            model=self.audit.model,
            status=finished.status,
            folder=finished.folder,
            lines=[(line, end.results) for line, end in ends if end is not None and end.results is not None],
            utility=learned,
        )


def reproduce(
    recipe: Recipe,
    out: str | Path,
    *,
    data_dir: str | Path = "data",
    only: str | None = None,
    attack_options: Mapping[str, Any] | None = None,
    options: RunOptions | None = None,
    budget: Budget | str | float | None = None,
    progress: Progress = SILENT,
    **changes: Any,
) -> Reproduced:
    """Run the lines of a recipe that are not finished yet, those whose name matches `only`.

    `attack_options` go to every attack that has them; further keywords change the audit of all lines: model, trials,
    seed, secret, device.
    """
    experiment = RecipeExperiment(recipe, data_dir=Path(data_dir), changes=changes, only=only, options=attack_options)
    return run_experiment(experiment, out, options=options, budget=budget, progress=progress)
