"""The options of gradient matching, under which one search is DLG, TAG, LAMP or subspace."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field

from gradleak.attacks.base import AttackOptions
from gradleak.matching.distances import DistanceName
from gradleak.models.text import TextModel

# From this size on the settings are those published for BERT-large.
LARGE_WIDTH, LARGE_LAYERS = 1024, 24


class MatchingOptions(AttackOptions):
    """Every setting of the search. Published values are the defaults of the attacks built on it."""

    distance: DistanceName = Field("cosine", description="how gradients are compared")
    l1_weight: float = Field(0.01, ge=0, description="factor on absolute differences in l2+l1")
    steps: int = Field(2000, ge=0, description="optimisation steps")
    optimizer: Literal["adam", "adamw"] = Field("adam", description="adamw decays with eps 1e-6, 0.01")
    lr: float = Field(0.01, gt=0, description="step size")
    schedule: Literal["constant", "step", "linear"] = Field("step", description="how the step size decays")
    decay: float = Field(0.89, gt=0, le=1, description="factor of the step schedule")
    decay_every: int = Field(50, ge=1, description="steps between two factors of the step schedule")
    linear_over: int | None = Field(None, ge=1, description="steps the linear schedule spans; default: steps")
    clip: float | None = Field(None, gt=0, description="largest norm of the gradient of a step")
    regularization: float = Field(1.0, ge=0, description="weight on the mean embedding norm staying typical")
    init_draws: int = Field(500, ge=1, description="random starts, of which the best is kept")
    init_orders: int = Field(500, ge=0, description="random orders of the best start, of which the best is kept")
    init_rescale: bool = Field(True, description="scale the start to the vocabulary's mean norm")
    patience: int = Field(0, ge=0, description="stop when the answer was the same for so many steps; 0: never")
    discrete_every: int = Field(75, ge=0, description="steps between two discrete phases; 0: none")
    discrete_after: float = Field(0.1, ge=0, le=1, description="share of the steps before the first discrete phase")
    discrete: Literal["alternate", "end"] = Field(
        "alternate", description="end: all discrete phases after the last step, an ablation"
    )
    candidates: int = Field(200, ge=1, description="orders tried for a sentence in a discrete phase")
    polish: int = Field(0, ge=0, description="last rounds, which move and replace tokens of the answer; 0: none")
    again: int = Field(
        0, ge=0, description="searches from the polished tokens while these do not explain the update but get closer"
    )
    prior: str = Field("ngram", description="ngram, smollm2, none, or a causal language model (folder or hub id)")
    prior_weight: float = Field(0.2, ge=0, description="weight on the prior's loss per token")
    guesses: int = Field(24, ge=1, description="most guesses at labels and lengths that the gradient does not show")
    race: int = Field(40, ge=0, description="steps after which only the best of these guesses goes on")
    fedavg: Literal["average", "unrolled"] = Field(
        "average", description="unrolled: differentiate through the client's local steps; exact, slow"
    )
    adapt: bool = Field(
        False, description="take noise, rounding, pruning, signs and clipping that show in the update into account"
    )
    engine: Literal["factor", "naive"] = Field("factor", description="naive: the slow oracle, for comparison")
    precision: Literal["fp32", "bf16"] = Field(
        "fp32", description="bf16: faster on large models where it is supported"
    )
    memory: str | None = Field(None, description="what the engine may use, such as 4GB; default: half of the free")

    def defaults_for(self, large: bool) -> dict[str, Any]:
        """Defaults that differ from the fields' own, on a model of this size."""
        return {}

    def completed(self, model: TextModel) -> Self:
        """These options, with defaults for the model where they were not set."""
        config = model.module.config
        large = int(config.hidden_size) >= LARGE_WIDTH and len(model.adapter.layers) >= LARGE_LAYERS
        set_by_user = {name: getattr(self, name) for name in self.model_fields_set}
        return type(self).model_validate({**self.defaults_for(large), **set_by_user})
