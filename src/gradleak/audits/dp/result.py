"""What a check of differential privacy found, in `dp-check.json`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from gradleak.core.files import write_text

FILE = "dp-check.json"


class DpCheck(BaseModel):
    """Whether updates tell more of one example than their noise was said to allow."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["updates", "training"] = Field(
        description="updates: one candidate each; training: one whole training, examples in it by the throw of a coin"
    )
    model: str
    defenses: list[str] = Field(default_factory=list)
    candidates: int = Field(description="examples to choose from, or thrown for")
    tries: int = Field(description="updates looked at, or guesses made")
    right: int = Field(description="of these, how many the attacker told right")
    promised: float = Field(description="the loss that is promised: √steps / noise for updates, ε for a training")
    least: float = Field(description="the loss that was measured at least, with the confidence `sure`")
    estimate: float | None = Field(
        default=None, description="the loss of two candidates as it was measured, taking noise for Gaussian"
    )
    sure: float
    delta: float | None = Field(default=None, description="δ of the ε of a training")
    noise: float | None = Field(
        default=None,
        description="the noise that was measured, as a multiple of what was promised; the smallest tensor",
    )
    findings: list[str] = Field(default_factory=list, description="what is broken, in words; empty if nothing is")
    notes: list[str] = Field(default_factory=list, description="what limits this check")
    seconds: float = 0.0
    status: str = "completed"

    @property
    def broken(self) -> bool:
        return bool(self.findings)

    def save(self, folder: Path) -> Path:
        return write_text(folder / FILE, self.model_dump_json(indent=2) + "\n")

    def lines(self) -> list[str]:
        """For the terminal: what was done, what it shows, and what it does not."""
        unit = "ε" if self.kind == "training" else "√steps / noise"
        done = (
            f"{self.right} of {self.tries} updates told right which of {self.candidates} candidates was in them"
            if self.kind == "updates"
            else f"{self.right} of {self.tries} guesses right which of {self.candidates} examples were trained on"
        )
        loss = f"so the loss ({unit}) is {self.least:.2f} or more, at {100 * self.sure:g} % confidence"
        end = "BROKEN" if self.broken else "no violation shown"
        return [
            f"{end}: {done}, {loss}; {self.promised:.2f} was promised.",
            *self.findings,
            *self.notes,
            *(
                []
                if self.broken
                else ["That nothing was shown proves nothing: a subtler mistake may need more updates."]
            ),
        ]
