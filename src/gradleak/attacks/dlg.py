"""DLG (Deep Leakage from Gradients): squared differences, one random start, no prior."""

from __future__ import annotations

from gradleak.attacks.base import with_defaults
from gradleak.attacks.matching import MatchingAttack, MatchingOptions

DlgOptions = with_defaults(
    MatchingOptions,
    "DlgOptions",
    distance="l2",
    steps=2500,
    lr=0.1,
    schedule="constant",
    regularization=0.0,
    init_draws=1,
    init_orders=0,
    init_rescale=False,
    discrete_every=0,
    prior="none",
    prior_weight=0.0,
)


class Dlg(MatchingAttack):
    name = "dlg"
    summary = "Deep Leakage from Gradients: least squares between gradients, no prior"
    Options = DlgOptions
