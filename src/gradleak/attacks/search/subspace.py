"""Subspace: gradient matching that starts from the tokens the gradient points at, and keeps to them.

Where noise, quantisation or local steps leave no proof, the leading directions of the first layer's gradient still
show which tokens are likely where. The search of LAMP then has hundreds of tokens to choose from instead of all,
starts near the answer and needs fewer steps.
"""

from __future__ import annotations

from pydantic import Field

from gradleak.attacks.base import with_defaults
from gradleak.attacks.evidence.hints import Hints, hints
from gradleak.attacks.search.matching_attack import Case, MatchingAttack
from gradleak.attacks.search.options import MatchingOptions
from gradleak.models.text import TextModel


class _SubspaceOptions(MatchingOptions):
    keep: int = Field(30, ge=1, description="likely tokens kept for each position of a sentence")


SubspaceOptions = with_defaults(
    _SubspaceOptions,
    "SubspaceOptions",
    steps=100,
    init_draws=20,
    init_orders=0,
    discrete_every=25,
    polish=12,
    adapt=True,
)


class Subspace(MatchingAttack):
    name = "subspace"
    summary = "for noisy updates: matching among the tokens that the gradient's leading directions point at"
    Options = SubspaceOptions

    def _hints(self, case: Case, model: TextModel) -> Hints | None:
        keep: int = getattr(self.options, "keep")  # noqa: B009 - options made by with_defaults have no static type
        longest = max(max(guess.lengths) for guess in case.guesses)
        return hints(case.gradient, model, longest, case.size, keep)
