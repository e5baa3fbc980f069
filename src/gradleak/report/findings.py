"""A verdict as the findings that other tools list: one for each scenario, in numbers and names of settings alone.

What pipelines collect is shown to more people than results are, so no text, no recovery and no error of a cell is in
it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gradleak.core.identity import digest
from gradleak.verdict.model import Level, Verdict


@dataclass(frozen=True)
class Finding:
    """What was found of one scenario."""

    scenario: str
    defense: str
    level: Level
    headline: str
    attacks: Sequence[str]
    numbers: dict[str, float] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.scenario}, defence {self.defense}"

    @property
    def identity(self) -> str:
        """The same for the same scenario in every run, whatever was found."""
        return digest({"scenario": self.scenario, "defense": self.defense})[:32]


def findings_of(verdict: Verdict) -> list[Finding]:
    """All scenarios, those without a truth last."""
    scored = [
        Finding(
            each.scenario,
            each.defense,
            each.level,
            each.headline,
            [attack.attack for attack in each.attacks],
            {
                "trials": sum(attack.trials for attack in each.attacks),
                "unfinished": sum(attack.unfinished for attack in each.attacks),
                "leak": each.attacks[0].leak.mean,
                "control": each.attacks[0].control.mean,
                "whole": max(attack.leaked.whole for attack in each.attacks),
                "examples": each.attacks[0].leaked.sentences,
            },
        )
        for each in verdict.scenarios
    ]
    unchecked = [
        Finding(
            each.scenario,
            each.defense,
            each.level,
            each.headline,
            [each.attack],
            {"certified": float(each.certified)},
        )
        for each in verdict.unchecked
    ]
    return scored + unchecked
