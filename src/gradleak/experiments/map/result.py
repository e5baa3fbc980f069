"""The form of `map.json`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from gradleak.audits.spec import AuditSpec
from gradleak.core.environment import Environment
from gradleak.core.files import write_text
from gradleak.experiments.experiment import ExperimentStatus
from gradleak.experiments.map.grid import ALL, WHOLE, Place
from gradleak.scoring.interval import Interval
from gradleak.scoring.metrics import label_of
from gradleak.scoring.scale import scale_by

FILE = "map.json"

CAVEAT = (
    "These figures say what this attack read back from these parts of these updates. A low score is not proof of "
    "safety: another attack, above all one made for the part, may read more."
)


class MapCell(Place):
    """One part of the model: how large it is, and what was read back from it alone."""

    parameters: int
    share: float = Field(description="of the model's trainable parameters, in percent")
    leak: Interval | None = Field(description="the measure of the map; null if it is not measured yet")
    control: Interval | None = Field(description="the same of guessing without the update")
    values: list[float] = Field(default_factory=list, description="the measure, trial by trial")
    guesses: list[float] = Field(default_factory=list, description="the same of guessing")
    cell: str = Field(description="the file of the audit in the folder `cells`")


class LeakMap(BaseModel):
    """Every part of the model with what it gives away."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    schema_version: Literal[2] = 2
    created: str
    status: ExperimentStatus
    environment: Environment
    spec: AuditSpec
    model_fingerprint: str
    metric: str = Field(description="what the leak is measured by: rougeL, of images psnr")
    layers: int
    columns: list[str] = Field(description="the modules of a layer, then the whole layer")
    cells: list[MapCell]

    def at(self, layer: int, column: str) -> MapCell:
        return next(cell for cell in self.cells if (cell.layer, cell.column) == (layer, column))

    def share(self, column: str) -> float:
        """The share of the model that one cell of a column sees."""
        return self.at(1, column).share

    @property
    def all(self) -> MapCell:
        return next(cell for cell in self.cells if cell.selection == ALL)

    @property
    def all_layers(self) -> MapCell | None:
        """All layers together; None where the model is nothing but its layers."""
        return next((cell for cell in self.cells if cell.layer is None and cell.selection != ALL), None)

    @property
    def label(self) -> str:
        """The measure in words."""
        return label_of(self.metric)

    def format(self, interval: Interval) -> str:
        return scale_by(self.metric).format(interval)

    def save(self, folder: Path) -> Path:
        """Write `map.json`, readable by its owner only."""
        return write_text(folder / FILE, self.model_dump_json(indent=2) + "\n")


def headline(result: LeakMap) -> str:
    """One sentence by a fixed rule: the single module that gave most away, beside everything and beside guessing."""
    modules = [cell for cell in result.cells if cell.column not in (None, WHOLE) and cell.leak is not None]
    if not modules:
        return "No single module is measured yet; run the same command again to continue."
    best = max(modules, key=lambda cell: 0.0 if cell.leak is None else cell.leak.mean)
    assert best.leak is not None
    assert best.control is not None
    beside = "" if result.all.leak is None else f"; all gradients together give {result.format(result.all.leak)}"
    if best.leak.low <= best.control.high:
        return (
            f"No single module is clearly above guessing ({result.format(best.control)}): the most was read from "
            f"{best.column} of layer {best.layer}, {result.label} {result.format(best.leak)}{beside}."
        )
    return (
        f"One module can be enough: {best.column} of layer {best.layer}, {best.share:.2g} % of the parameters, gives "
        f"{result.label} {result.format(best.leak)}{beside}, and guessing {result.format(best.control)}."
    )
