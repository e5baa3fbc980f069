"""The form of a verdict, in `results.json` and in `verdict.json`. `docs/verdict.md` explains it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from gradleak.core.files import write_text
from gradleak.scoring.interval import Interval
from gradleak.scoring.pieces import Pieces
from gradleak.scoring.scale import Scale, scale_by

FILE = "verdict.json"

Level = Literal["critical", "high", "moderate", "unfinished", "unclear", "not shown"]
# The worst first. What is not finished or not clear stands above what was tried to its end in vain.
LEVELS: tuple[Level, ...] = ("critical", "high", "moderate", "unfinished", "unclear", "not shown")

ObstacleKind = Literal[
    "budget", "tensors-missing", "rank-limit", "noise", "coarse-values", "local-steps", "dropout", "not-told",
    "tokens-only", "no-gap", "search",
]  # fmt: skip


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Obstacle(_Model):
    """Something that kept an attack from reading all of some trials, as far as the facts tell."""

    kind: ObstacleKind
    trials: int = Field(description="trials of this attack in which it stood in the way")
    numbers: dict[str, float] = Field(default_factory=dict, description="the figures of its text, means over trials")
    text: str


class Leaked(_Model):
    """What an attack read back, counted."""

    sentences: int = Field(description="true sentences, or images")
    whole: int = Field(description="sentences that came back token by token, or close images")
    certified: int = Field(description="those of them that the update itself proves")
    pieces: Pieces | None = Field(description="names and numbers; null where they were not counted")
    guessed: Pieces | None = Field(
        default=None, description="the same of all draws of the control, which are several a trial; null if not kept"
    )


class AttackVerdict(_Model):
    """One attack on one scenario."""

    attack: str
    trials: int
    unfinished: int = Field(description="trials that the budget or an interruption ended; they prove no absence")
    measure: str = Field(default="rougeL", description="the metric of leak and control: rougeL, of images psnr")
    leak: Interval
    control: Interval = Field(description="the same of guessing without the update")
    whole: Interval = Field(description="percent of the sentences that came back whole, or images close, by trial")
    control_whole: float = Field(description="the same of guessing, its mean")
    tokens: Interval | None = Field(description="percent of the batch's tokens it named; null if it looks for none")
    precision: Interval | None = Field(description="percent of the tokens it named that were there")
    leaked: Leaked
    obstacles: list[Obstacle] = Field(description="why it did not read more; empty if it read everything")

    @property
    def scale(self) -> Scale:
        return scale_by(self.measure)


class ScenarioVerdict(_Model):
    """Everything that was tried on one scenario, and what it came to."""

    scenario: str
    defense: str
    level: Level
    headline: str
    strongest: str = Field(description="the attack with the highest leak")
    attacks: list[AttackVerdict] = Field(description="every attack that was tried, the strongest first")
    missing: list[str] = Field(default_factory=list, description="attempts on it that have no result")
    change: str | None = Field(default=None, description="what measured change would have helped, if one would")


class Verdict(_Model):
    """All scenarios of a folder, the worst first."""

    schema_version: Literal[1] = 1
    created: str
    level: Level
    scenarios: list[ScenarioVerdict]
    missing: list[str] = Field(
        default_factory=list, description="attempts that have no result: they count for nothing"
    )
    caveat: str

    def save(self, folder: Path) -> Path:
        """Write `verdict.json`, readable by its owner only."""
        return write_text(folder / FILE, self.model_dump_json(indent=2) + "\n")
