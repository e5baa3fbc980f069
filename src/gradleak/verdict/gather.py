"""The results of a folder: one audit, or all cells of a sweep, a frontier, a map or a recipe."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel

from gradleak.audits.redact import redact as redacted
from gradleak.audits.results import FILE, Results, Scenario, load_results
from gradleak.audits.spec import AuditSpec
from gradleak.core.errors import GradleakError
from gradleak.core.privacy import private, redacting
from gradleak.core.reading import read_model
from gradleak.defenses.chains import canonical
from gradleak.experiments.checkpoints.result import FILE as CHECKPOINTS
from gradleak.experiments.checkpoints.result import Checkpoints
from gradleak.experiments.frontier.run import FILE as FRONTIER
from gradleak.experiments.frontier.run import Frontier
from gradleak.experiments.map.result import FILE as MAP
from gradleak.experiments.map.result import LeakMap
from gradleak.experiments.runner.cell import EndedCell, Status
from gradleak.experiments.runner.store import PLAN, read_cell, read_cells, read_plan
from gradleak.models.tasks import Modality
from gradleak.scoring.interval import Interval
from gradleak.updates.client_rule import ClientRule
from gradleak.verdict.attempts import Missing, selection
from gradleak.verdict.judge import judge
from gradleak.verdict.model import Verdict

# More than a person keeps results in; a whole disk has more, and is not searched.
MOST_FOLDERS = 10_000

Kept = TypeVar("Kept", bound=BaseModel)


@dataclass(frozen=True)
class Gathered:
    """All results below a folder, what has none, and what else was made of them."""

    folder: Path
    results: list[Results]
    missing: list[Missing] = field(default_factory=list)
    frontier: Frontier | None = None
    leak_map: LeakMap | None = None
    checkpoints: Checkpoints | None = None

    @functools.cached_property
    def verdict(self) -> Verdict:
        return judge(self.results, self.missing, costs(self.frontier))

    def by_modality(self) -> dict[Modality, Gathered]:
        """The same, results of text and of images apart, in the order in which they come."""
        parts: dict[Modality, list[Results]] = {}
        for each in self.results:
            parts.setdefault(each.scenario.modality, []).append(each)
        return {modality: dataclasses.replace(self, results=part) for modality, part in parts.items()}


def gather(folder: str | Path, redact: bool = False) -> Gathered:
    """Read whatever a folder holds: `results.json` itself, those of the folders below it, or an experiment's cells.

    The file of a single cell does as well. `redact` leaves the private texts and images out.
    """
    with redacting(redact):
        found = _gather(Path(folder))
    return dataclasses.replace(found, results=list(map(redacted, found.results))) if redact else found


def _gather(place: Path) -> Gathered:
    if place.suffix == ".json" and (cell := read_cell(place, EndedCell)) is not None and cell.results is not None:
        return Gathered(place.with_suffix(""), [_ended_as(cell.results, cell.status)])
    if place.is_file():
        raise GradleakError(f"{place} is a file; give the folder that holds results.json")
    if not place.is_dir():
        raise GradleakError(f"there is no folder {place}")
    results, missing = _of_an_experiment(place) if (place / PLAN).exists() else (_of_audits(place), [])
    if not results:
        raise GradleakError(f"{place} holds no result yet: all its cells failed or are still to be run")
    return Gathered(
        place,
        results,
        missing,
        frontier=_read(place / FRONTIER, Frontier),
        leak_map=_read(place / MAP, LeakMap),
        checkpoints=_read(place / CHECKPOINTS, Checkpoints),
    )


def _of_audits(place: Path) -> list[Results]:
    folders = [place] if (place / FILE).exists() else sorted(_with_results(place))
    if not folders:
        raise GradleakError(f"{place} holds no {FILE}, nor does any folder below it; give a folder an audit wrote")
    return [load_results(folder) for folder in folders]


def _with_results(place: Path) -> Iterator[Path]:
    """The folders below a place that hold a result; what cannot be read is passed over, links are not followed."""
    for number, (folder, _, files) in enumerate(os.walk(place)):
        if number >= MOST_FOLDERS:
            raise GradleakError(f"{place} has more than {MOST_FOLDERS:,} folders below it; give one an audit wrote")
        if FILE in files:
            yield Path(folder)


def _of_an_experiment(place: Path) -> tuple[list[Results], list[Missing]]:
    """The results of an experiment's cells, and the audits that have none."""
    cells = {cell.id: cell for cell in read_cells(place)}
    results = [_ended_as(cell.results, cell.status) for cell in cells.values() if cell.results is not None]
    without = [cell for cell in cells.values() if cell.results is None and cell.job.kind == "audit"]
    missing = [Missing(f"{cell.id} ({cell.status}: {_why(cell)})", _scenario_of(cell.job.spec)) for cell in without]
    plan = read_plan(place)
    unrun = [name for name in plan.cells if name not in cells and name not in plan.trainings]
    return results, [*missing, *(Missing(f"{name} (not run)", lambda _: False) for name in unrun)]


def _why(cell: EndedCell) -> str | None:
    """Why a cell has no result; if it ran without redaction its error may quote texts."""
    return cell.error if cell.job.spec.redact or cell.error is None else private(cell.error)


def _ended_as(results: Results, status: Status) -> Results:
    """Trials of a cell that a limit ended are cut short, whatever they say themselves."""
    if status == "completed":
        return results
    cut = [trial.model_copy(update={"status": "budget-exhausted"}) for trial in results.trials]
    return results.model_copy(update={"trials": cut, "status": "budget-exhausted"})


def _scenario_of(settings: AuditSpec) -> Callable[[Scenario], bool]:
    """Whether an audit with these settings would have been on a scenario."""
    client, defenses = ClientRule.parse(settings.client), canonical(settings.defenses)

    def on(scenario: Scenario) -> bool:
        return (
            (Path(scenario.model).name, Path(scenario.data).name)
            == (Path(settings.model).name, Path(settings.data).name)
            and (scenario.batch_size, scenario.client) == (settings.batch_size, client)
            and scenario.clients == (settings.aggregate or 1)
            and (scenario.defenses, selection(scenario)) == (defenses, settings.observe)
        )

    return on


def costs(frontier: Frontier | None) -> dict[str, Interval]:
    """What each measured defence costs, by its name in results."""
    points = [] if frontier is None else frontier.points
    return {" + ".join(point.defenses): point.cost for point in points if point.cost is not None and point.defenses}


def _read(path: Path, kind: type[Kept]) -> Kept | None:
    return read_model(path, kind, "what an experiment wrote") if path.exists() else None
