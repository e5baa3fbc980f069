"""The form of a recipe: one table or figure of a paper, with its numbers."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from gradleak.core.errors import GradleakError
from gradleak.core.parameters import validated
from gradleak.core.registry import suggest
from gradleak.core.yaml_files import read_yaml
from gradleak.experiments.runner.jobs import InverterSpec
from gradleak.experiments.specs import ExperimentSpec
from gradleak.scoring.metrics import METRICS


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class RecipeLine(_Model):
    """One line of a table."""

    name: str
    data: str = Field(description="a corpus by its name, which is looked for in the data folder")
    attack: str
    options: dict[str, Any] = {}
    batch_size: int = Field(1, ge=1)
    trials: int | None = Field(None, ge=1, description="at most so many, where the paper has fewer than for the rest")
    client: str = "fedsgd"
    defenses: tuple[str, ...] = ()
    observe: str = Field("all", description="the part of the model the attacker sees")
    every_layer_from: int | None = Field(
        None, ge=1, description="one line per layer, from this one to the model's last; * is the layer's number"
    )
    inverter: InverterSpec | None = Field(None, description="the network the attack lti reads updates with")
    paper: dict[str, tuple[float, ...]] = Field({}, description="R-1, R-2, R-L, or what the name says, by model")

    @model_validator(mode="after")
    def _has_room_for_numbers(self) -> Self:
        starred = "*" in self.name and "*" in self.observe and not self.observe.startswith("regex:")
        if self.every_layer_from is not None and not starred:
            raise ValueError("every_layer_from needs a * for the layer's number in name and observe")
        return self

    def on(self, layers: int) -> list[RecipeLine]:
        """The lines this one stands for on a model of so many layers.

        >>> queries = RecipeLine(name="q *", data="cola", attack="dlg", observe="layer:*.query", every_layer_from=2)
        >>> [(line.name, line.observe) for line in queries.on(3)]
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


class UtilityPart(_Model):
    """What the model learns under the defences of a table's lines."""

    data: str
    rounds: dict[str, Any] = Field({}, description="how it is trained: the settings of `gradleak utility`")


class Recipe(ExperimentSpec):
    """One table or figure of a paper; settings of an audit hold for all lines."""

    varied = frozenset(
        {"data", "attack", "options", "batch_size", "client", "defenses", "observe", "budget", "memory", "out"}
    )

    title: str
    source: str
    notes: str = ""
    metrics: tuple[str, ...] = Field(("rouge1", "rouge2", "rougeL"), description="which of our scores are shown")
    cells: tuple[RecipeLine, ...]
    utility: UtilityPart | None = None

    @model_validator(mode="before")
    @classmethod
    def _trials(cls, values: Any) -> Any:
        return {"trials": 20, **values} if isinstance(values, dict) and "audit" not in values else values

    @field_validator("metrics")
    @classmethod
    def _known_metrics(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            METRICS.get(name)
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
    return validated(Recipe, values, f"recipe {name}")
