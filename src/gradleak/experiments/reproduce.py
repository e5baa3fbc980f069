"""Running a recipe: one audit a cell, finished cells kept, the paper's numbers beside ours."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from rich.console import Console
from rich.table import Table

from gradleak.audits.results import FILE, Results, load_results
from gradleak.audits.spec import read_yaml
from gradleak.clients.sender import DEFAULT_GRANTS
from gradleak.core.budget import Budget
from gradleak.core.errors import GradleakError
from gradleak.core.files import output_folder, write_text
from gradleak.core.progress import Progress
from gradleak.core.registry import suggest
from gradleak.data.corpora import read_dataset
from gradleak.experiments.frontier.utility import UtilityResults, utility
from gradleak.experiments.recipe_benches import ImageBench, TextBench, bench_of
from gradleak.models.base import Target
from gradleak.models.selection import ALL
from gradleak.scoring.interval import Interval
from gradleak.scoring.metrics import format_score, label_of, metric_names
from gradleak.version import __version__

TABLE_FILE = "table.md"


class InverterPart(BaseModel):
    """What a cell's attack is trained on first, and how: the settings of `gradleak train-inverter`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    aux: str
    pseudo: bool = True
    size: int | None = Field(None, ge=2)
    other: str | None = None
    share: float = Field(1.0, ge=0, le=1)
    network: dict[str, Any] = {}
    training: dict[str, Any] = {}


class Cell(BaseModel):
    """One line of a table."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    data: str
    attack: str
    options: dict[str, Any] = {}
    batch_size: int = Field(1, ge=1)
    client: str = "fedsgd"
    defenses: tuple[str, ...] = ()
    observe: str = Field(ALL, description="the part of the model the attacker sees")
    every_layer_from: int | None = Field(
        None, ge=1, description="one cell a layer, from this one to the model's last; * is the layer's number"
    )
    inverter: InverterPart | None = Field(None, description="the network the attack lti reads updates with")
    paper: dict[str, tuple[float, ...]] = Field({}, description="R-1, R-2, R-L, or what the name says, by model")

    @model_validator(mode="after")
    def _has_room_for_numbers(self) -> Self:
        starred = "*" in self.name and "*" in self.observe and not self.observe.startswith("regex:")
        if self.every_layer_from is not None and not starred:
            raise ValueError("every_layer_from needs a * for the layer's number in name and observe")
        return self

    def on(self, layers: int) -> list[Cell]:
        """The cells this one stands for on a model of so many layers.

        >>> queries = Cell(name="q *", data="cola", attack="dlg", observe="layer:*.query", every_layer_from=2)
        >>> [(cell.name, cell.observe) for cell in queries.on(3)]
        [('q 2', 'layer:2.query'), ('q 3', 'layer:3.query')]
        """
        if self.every_layer_from is None:
            return [self]
        return [
            self.model_copy(
                update={
                    "name": self.name.replace("*", str(number)),
                    "observe": self.observe.replace("*", str(number)),
                    "every_layer_from": None,
                }
            )
            for number in range(self.every_layer_from, layers + 1)
        ]


class UtilityPart(BaseModel):
    """What the model learns under the defences of a table's cells."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    data: str
    rounds: dict[str, Any] = Field({}, description="how it is trained: the settings of `gradleak utility`")


class Recipe(BaseModel):
    """One table or figure of a paper."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    title: str
    source: str
    notes: str = ""
    model: str = "minilm"
    trials: int = Field(20, ge=1)
    known: tuple[str, ...] = DEFAULT_GRANTS
    window: int | None = Field(None, ge=2, description="texts are cut into pieces of exactly so many tokens")
    metrics: tuple[str, ...] = Field(("rouge1", "rouge2", "rougeL"), description="which of our scores are shown")
    cells: tuple[Cell, ...]
    utility: UtilityPart | None = None

    @field_validator("metrics")
    @classmethod
    def _known_metrics(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if name not in metric_names():
                raise ValueError(f"unknown metric {name!r}; {suggest(name, metric_names())}")
        return names


def recipe_names() -> list[str]:
    """The recipes that come with the package."""
    files = resources.files("gradleak.experiments.recipes").iterdir()
    return sorted(file.name.removesuffix(".yaml") for file in files if file.name.endswith(".yaml"))


def load_recipe(name: str) -> Recipe:
    """A recipe by name, or from a file."""
    if name in recipe_names():
        with resources.as_file(resources.files("gradleak.experiments.recipes").joinpath(f"{name}.yaml")) as path:
            values = read_yaml(path)
    elif name.endswith((".yaml", ".yml")):
        values = read_yaml(Path(name))
    else:
        raise GradleakError(f"unknown recipe {name!r}; {suggest(name, recipe_names())}")
    try:
        return Recipe.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise GradleakError(f"recipe {name}: {where}: {first['msg']}") from error


def reproduce(
    recipe: Recipe,
    *,
    data_dir: Path,
    out: Path,
    model: str | None = None,
    trials: int | None = None,
    seed: int = 0,
    only: str | None = None,
    options: dict[str, Any] | None = None,
    budget: Budget | None = None,
    progress: Progress,
) -> Iterator[tuple[Cell, Results]]:
    """Every cell with its results, in order. Cells whose results lie in `out` already are not run again.

    A cell that the budget cut short is not written, so that the next run does it whole.
    """
    limit = budget or Budget()
    bench = bench_of(model or recipe.model, data_dir, progress)
    every = [cell for line in recipe.cells for cell in line.on(bench.layers)]
    cells = [cell for cell in every if only is None or re.search(only, cell.name, re.IGNORECASE)]
    if not cells:
        raise GradleakError(f"no cell matches {only!r}; cells: {', '.join(cell.name for cell in every)}")
    for cell in cells:
        bench.check(cell)  # what is missing should be said now, not after hours
    with output_folder(out) as folder:
        for cell in cells:
            chosen = cell.model_copy(update={"options": {**cell.options, **_fitting(cell, options or {}, bench)}})
            settings = {"known": recipe.known, "trials": trials or recipe.trials, "seed": seed}
            asking = {"nerr": "entities", "lpips": "lpips"}
            settings |= {setting: True for metric, setting in asking.items() if metric in recipe.metrics}
            if recipe.window is not None:
                settings["window"] = recipe.window
            place = folder / _identity(chosen, settings, bench.model)
            if not (place / FILE).is_file():
                if limit.over:
                    return
                results = bench.run(chosen, settings, folder, limit, progress)
                if results is None or results.status != "completed":
                    return
                with output_folder(place):
                    results.save(place)
            yield cell, load_results(place)


def reproduce_utility(
    recipe: Recipe,
    *,
    data_dir: Path,
    out: Path,
    model: str | None = None,
    seed: int = 0,
    budget: Budget | None = None,
    progress: Progress,
) -> UtilityResults | None:
    """What the model learns under every defence of the recipe; None if the table has no such part."""
    if recipe.utility is None:
        return None
    return utility(
        model or recipe.model,
        data=read_dataset(recipe.utility.data, data_dir),
        defenses=list(dict.fromkeys(cell.defenses for cell in recipe.cells if cell.defenses)),
        seed=seed,
        out=out,
        budget=budget,
        progress=progress,
        **recipe.utility.rounds,
    )


def _fitting(cell: Cell, options: dict[str, Any], bench: TextBench | ImageBench) -> dict[str, Any]:
    """Options for all cells go to the attacks that have them."""
    known = bench.method(cell.attack).Options.model_fields
    return {key: value for key, value in options.items() if key in known}


def _identity(cell: Cell, settings: dict[str, Any], model: Target) -> str:
    """A folder name that changes with everything that decides the result."""
    # The whole update is what is seen unless a cell says otherwise, so cells measured before that could be said hold.
    aside = {"paper", "name", "every_layer_from"} | ({"observe"} if cell.observe == ALL else set())
    aside |= {"inverter"} if cell.inverter is None else set()
    decides = {**cell.model_dump(exclude=aside), **settings, "model": model.fingerprint, "v": __version__}
    digest = hashlib.sha256(json.dumps(decides, sort_keys=True, default=str).encode()).hexdigest()[:10]
    return f"{re.sub('[^a-z0-9]+', '-', cell.name.lower()).strip('-')}-{digest}"


# --- the table ------------------------------------------------------------------------------------


def print_recipe(recipe: Recipe, done: Sequence[tuple[Cell, Results]], model: str, folder: Path) -> None:
    """Ours with intervals, the paper's beside it, and where the table lies."""
    console = Console()
    table = Table(title=f"{recipe.title} ({recipe.source}); ours on {model}", title_justify="left")
    for heading in _headings(recipe, done):
        table.add_column(heading, no_wrap=True)
    for line in _lines(recipe, done):
        table.add_row(*line)
    console.print(table)
    if recipe.notes:
        console.print(recipe.notes.strip(), style="dim")
    print(f"table  {folder / TABLE_FILE}")


def markdown(recipe: Recipe, done: Sequence[tuple[Cell, Results]]) -> str:
    """The same table for a document."""
    headings = _headings(recipe, done)
    lines = [headings, ["---"] * len(headings), *_lines(recipe, done)]
    return f"{recipe.title}: {recipe.source}\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def write_table(folder: Path, recipe: Recipe, done: Sequence[tuple[Cell, Results]]) -> Path:
    return write_text(folder / TABLE_FILE, markdown(recipe, done))


def _headings(recipe: Recipe, done: Sequence[tuple[Cell, Results]]) -> list[str]:
    papers = dict.fromkeys(name for cell, _ in done for name in cell.paper)
    ours = [label_of(name) for name in recipe.metrics]
    return ["", *ours, *_found(done), "trials", "s a trial", *(f"paper, {name}" for name in papers)]


def _found(done: Sequence[tuple[Cell, Results]]) -> list[str]:
    """What attacks had to find beside sentences."""
    return list(dict.fromkeys(name for _, results in done for name in results.found))


def _lines(recipe: Recipe, done: Sequence[tuple[Cell, Results]]) -> list[list[str]]:
    papers = dict.fromkeys(name for cell, _ in done for name in cell.paper)
    lines = []
    for cell, results in done:
        seconds = sum(trial.seconds for trial in results.trials) / len(results.trials)
        ours = [_interval(name, results.summary.get(name)) for name in recipe.metrics]
        ours += [_interval(name, results.found.get(name)) for name in _found(done)]
        theirs = [" / ".join(f"{x:g}" for x in cell.paper.get(name, ())) for name in papers]
        lines.append([cell.name, *ours, str(len(results.trials)), f"{seconds:.0f}", *theirs])
    return lines


def _interval(metric: str, interval: Interval | None) -> str:
    return "" if interval is None else format_score(metric, interval)
