"""The results of a folder: one audit, or all cells of a sweep, a frontier, a map or a recipe."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from gradleak.checkpoints.result import FILE as CHECKPOINTS
from gradleak.checkpoints.result import Checkpoints
from gradleak.errors import GradleakError
from gradleak.leakmap.result import FILE as MAP
from gradleak.leakmap.result import LeakMap
from gradleak.results import FILE, Results, load_results
from gradleak.scoring.interval import Interval
from gradleak.tradeoff.frontier import FILE as FRONTIER
from gradleak.tradeoff.frontier import Frontier
from gradleak.verdict.judge import MEASURE, judge
from gradleak.verdict.model import Verdict

Kept = TypeVar("Kept", bound=BaseModel)


@dataclass(frozen=True)
class Gathered:
    """All results below a folder, what has none, and what else was made of them."""

    folder: Path
    results: list[Results]
    missing: list[str] = field(default_factory=list)
    frontier: Frontier | None = None
    leak_map: LeakMap | None = None
    checkpoints: Checkpoints | None = None

    def verdict(self) -> Verdict:
        return judge(self.results, self.missing, costs(self.frontier))


def gather(folder: str | Path) -> Gathered:
    """Read whatever a folder holds: `results.json` itself, or those of the folders below it."""
    place = Path(folder)
    if not place.is_dir():
        raise GradleakError(f"there is no folder {place}")
    files = [place / FILE] if (place / FILE).is_file() else sorted(place.rglob(FILE))
    results = [load_results(file.parent) for file in files]
    if not results:
        raise GradleakError(f"{place} holds no {FILE}, nor does any folder below it; give a folder an audit wrote")
    if strange := [one for one in results if MEASURE not in one.summary]:
        raise GradleakError(f"{place} holds an audit of {strange[0].scenario.model} that is not one of text")
    return Gathered(
        place,
        results,
        frontier=_read(place / FRONTIER, Frontier),
        leak_map=_read(place / MAP, LeakMap),
        checkpoints=_read(place / CHECKPOINTS, Checkpoints),
    )


def costs(frontier: Frontier | None) -> dict[str, Interval]:
    """What each measured defence costs, by its name in results."""
    points = [] if frontier is None else frontier.points
    return {" + ".join(point.defenses): point.cost for point in points if point.cost is not None and point.defenses}


def _read(path: Path, kind: type[Kept]) -> Kept | None:
    if not path.is_file():
        return None
    try:
        return kind.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise GradleakError(f"{path} cannot be read: {error.errors()[0]['msg']}") from error
