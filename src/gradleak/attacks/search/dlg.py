"""DLG (Deep Leakage from Gradients): squared differences, a single random start, no prior."""

from __future__ import annotations

from typing import Any, ClassVar

from gradleak.attacks.base import with_defaults
from gradleak.attacks.search.matching_attack import MatchingAttack
from gradleak.attacks.search.options import MatchingOptions


class BaselineOptions(MatchingOptions):
    """On models as large as BERT-large the published baselines run longer, with other optimiser settings."""

    large_lr: ClassVar[float] = 0.1

    def defaults_for(self, large: bool) -> dict[str, Any]:
        if not large:
            return {}
        return {"steps": 10000, "optimizer": "adamw", "lr": self.large_lr, "schedule": "linear", "clip": 1.0}


# As published: a single random start, a constant step size, no prior.
BASELINE: dict[str, Any] = {
    "steps": 2500,
    "lr": 0.1,
    "schedule": "constant",
    "regularization": 0.0,
    "init_draws": 1,
    "init_orders": 0,
    "init_rescale": False,
    "discrete_every": 0,
    "prior": "none",
    "prior_weight": 0.0,
}
DlgOptions = with_defaults(BaselineOptions, "DlgOptions", distance="l2", **BASELINE)


class Dlg(MatchingAttack):
    name = "dlg"
    summary = "Deep Leakage from Gradients: least squares between gradients, no prior"
    Options = DlgOptions
