"""What is said of every candidate. `docs/contains.md` explains it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from gradleak.attacks.contains.calibration import confirmed
from gradleak.core.budget import StopReason
from gradleak.core.files import write_text
from gradleak.core.privacy import MASK
from gradleak.core.text import counted

FILE = "contains.json"
# The false-alarm rates at which candidates are counted as confirmed.
LEVELS = (0.01, 0.001)


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Candidate(_Model):
    """One sentence: how much speaks for its having been in; null where the time ended before it was looked at."""

    text: str
    score: float | None = Field(default=None, description="spreads above the mean of sentences that were not in")
    likelihood_ratio: float | None = Field(
        default=None, description="how much likelier the score is for a sentence that was in, from 1e-6 to 1e6"
    )
    false_alarm_rate: float | None = Field(
        default=None,
        description="share of sentences that were not in that score as high; at least 1 / (references + 1)",
    )


class Containment(_Model):
    """Which of the candidates an update confirms. None is ever said not to have been in."""

    schema_version: Literal[1] = 1
    status: StopReason = "completed"
    redacted: bool = False
    model: str
    client: str
    candidates: list[Candidate]
    references: int = Field(description="public sentences, held out, that false alarms were counted on")
    public: str = Field(description="where public sentences came from: wikitext, or given")
    seconds: float = 0.0
    notes: list[str] = Field(default_factory=list)

    def confirmed(self, level: float = LEVELS[0]) -> int:
        """How many candidates have at most this false-alarm rate; each by itself, not corrected for their number."""
        return confirmed([each.false_alarm_rate for each in self.candidates], level)

    def can_show(self, level: float) -> bool:
        """Whether there were enough public sentences for a rate so low."""
        return 1 / (self.references + 1) <= level

    def save(self, folder: Path) -> Path:
        """Write `contains.json`, readable by its owner only."""
        return write_text(folder / FILE, self.model_dump_json(indent=2) + "\n")

    def masked(self) -> Containment:
        """The same without the texts."""
        hidden = [each.model_copy(update={"text": MASK}) for each in self.candidates]
        return self.model_copy(update={"candidates": hidden, "redacted": True})

    def __repr__(self) -> str:
        """Counts, without the texts, which may be private."""
        return (
            f"Containment({counted(len(self.candidates), 'candidate')}, {self.confirmed()} confirmed at "
            f"{LEVELS[0]:.0%} false alarms, {self.status})"
        )

    __str__ = __repr__
