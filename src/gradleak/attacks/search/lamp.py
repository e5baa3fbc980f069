"""LAMP: gradient matching that alternates with a search over token orders guided by a language prior."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from gradleak.attacks.base import with_defaults
from gradleak.attacks.search.matching_attack import MatchingAttack
from gradleak.attacks.search.options import MatchingOptions


class LampOptions(MatchingOptions):
    """Options that are not set come from the preset."""

    preset: Literal["fast", "thorough", "paper"] = Field(
        "fast",
        description="fast: a quarter of the time; thorough: a third of it, then again from its tokens while they get "
        "closer; paper: as published",
    )

    def defaults_for(self, large: bool) -> dict[str, Any]:
        """What the preset changes; docs/engine.md shows what `fast` costs and what it saves."""
        published = {"optimizer": "adamw", "schedule": "linear", "clip": 0.5} if large else {}
        if self.preset == "paper":
            return {**published, "steps": 5000, "linear_over": 10000, "discrete_every": 200} if large else {}
        # On large models the published run is shortened by the same factor as on smaller ones.
        size = (
            {"steps": 1125, "linear_over": 2250, "discrete_every": 65}
            if large
            else {"steps": 450, "discrete_every": 25}
        )
        short = {**published, **size, "init_draws": 20, "init_orders": 0, "polish": 12, "adapt": True}
        if self.preset == "fast":
            return short
        return {**short, "steps": size["steps"] // 3, "polish": 6, "again": 12}


class LampCos(MatchingAttack):
    """The variant with the cosine distance; its published settings are the defaults of the search itself."""

    name = "lamp-cos"
    summary = "LAMP with cosine distance: matching, a language prior and token reordering"
    Options = LampOptions


# Sums over all coordinates are larger than cosines, so the weights of the other terms are larger too.
LampSumOptions = with_defaults(
    LampOptions, "LampSumOptions", distance="l2+l1", regularization=25.0, prior_weight=60.0
)


class LampL2L1(MatchingAttack):
    name = "lamp-l2l1"
    summary = "LAMP with squared and absolute differences; the paper's better variant for batches"
    Options = LampSumOptions


class LampL2(MatchingAttack):
    name = "lamp-l2"
    summary = "LAMP with squared differences only; an ablation of the paper"
    Options = with_defaults(LampSumOptions, "LampL2Options", distance="l2")
