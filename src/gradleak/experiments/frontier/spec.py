"""The form of `frontier.yaml`: attacks, defences, and the training that tells what the defences cost."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from gradleak.core.errors import GradleakError
from gradleak.core.parameters import validated
from gradleak.core.yaml_files import read_yaml
from gradleak.defenses.chains import Chain, chain_list, parse_chains
from gradleak.experiments.frontier.advice import TOLERANCE
from gradleak.experiments.specs import AttackChoice, ExperimentSpec
from gradleak.training.rounds import RoundSettings

TRIALS = 8


class FrontierSpec(ExperimentSpec):
    """Everything a frontier can be asked; settings of an audit hold for all of its attacks and defences."""

    varied = frozenset({"attack", "options", "observe", "budget", "memory", "out"})

    attacks: tuple[AttackChoice, ...] = Field((AttackChoice(name="auto"),), min_length=1)
    defenses: tuple[Chain, ...] = Field(((),), description="settings to compare; none is always among them")
    utility: RoundSettings = RoundSettings()
    metric: Literal["accuracy", "f1", "mcc"] = Field("accuracy", description="language models: always perplexity")
    tolerance: float = Field(TOLERANCE, ge=0, description="points a defence may cost; percent of perplexity")

    @model_validator(mode="before")
    @classmethod
    def _defaults(cls, values: Any) -> Any:
        """Clients train on as many rows as the attacked ones, unless the file sets another number."""
        if not isinstance(values, dict) or "audit" in values:
            return values
        rounds = values.get("utility") or {}
        size = {"batch_size": values["batch_size"]} if "batch_size" in values else {"batch_size": 1}
        rounds = {**size, **rounds} if isinstance(rounds, dict) else rounds
        return {"trials": TRIALS, **values, "utility": rounds}

    @field_validator("defenses", mode="before")
    @classmethod
    def _chains(cls, value: object) -> object:
        return parse_chains(chain_list(value))

    @model_validator(mode="after")
    def _different(self) -> FrontierSpec:
        labels = [attack.label for attack in self.attacks]
        if len(set(labels)) < len(labels):
            raise GradleakError("the same attack with the same options is listed twice")
        return self


def load_frontier(path: Path, changes: Mapping[str, Any]) -> FrontierSpec:
    """The frontier of a YAML file with the given values on top."""
    return validated(FrontierSpec, {**read_yaml(path), **changes}, str(path))
