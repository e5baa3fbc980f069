"""LAMP: gradient matching that alternates with a search over token orders guided by a language prior."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from gradleak.attacks.matching import MatchingAttack, MatchingOptions

# What `fast` changes of the published settings; docs/engine.md shows what it costs and what it saves.
PRESETS: dict[str, dict[str, Any]] = {
    "paper": {},
    "fast": {
        "steps": 450,
        "init_draws": 20,
        "init_orders": 0,
        "discrete_every": 25,
    },
}


class LampOptions(MatchingOptions):
    """Options left unsaid come from the preset; those said win over it."""

    preset: Literal["fast", "paper"] = Field("fast", description="fast: a quarter of the time; paper: as published")

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        return {**PRESETS.get(str(values.get("preset", "fast")), {}), **values}


class LampCos(MatchingAttack):
    """The variant with the cosine distance; its published settings are the defaults of the search itself."""

    name = "lamp-cos"
    summary = "LAMP with cosine distance: matching, a language prior and token reordering"
    Options = LampOptions
