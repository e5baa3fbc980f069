"""The form of `checkpoints.json`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from gradleak.audits.spec import AuditSpec
from gradleak.core.environment import Environment
from gradleak.core.files import write_text
from gradleak.experiments.experiment import ExperimentStatus
from gradleak.scoring.interval import Interval
from gradleak.scoring.metrics import label_of

FILE = "checkpoints.json"

CAVEAT = (
    "These figures say what this attack read back from updates of this one training. A low score is not proof of "
    "safety, and another training may go another way."
)


class Checkpoint(BaseModel):
    """The model at one step of its training: what it had learned, and what its updates gave away."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    step: int
    model: str = Field(description="the folder of its weights")
    model_fingerprint: str | None
    learned: dict[str, float] = Field(description="perplexity, or accuracy, F1 and MCC, on the held-out rows")
    leak: Interval | None = Field(description="the metric's mean over updates; null if it is not measured yet")
    control: Interval | None = Field(description="the same of guessing without the update")
    change: Interval | None = Field(description="against the first one measured, batch by batch; null for itself")
    cell: str = Field(description="the file of the audit in the folder `cells`")


class Checkpoints(BaseModel):
    """One training, audited at several of its steps with the same private batches."""

    model_config = ConfigDict(extra="forbid")

    schema_version: Literal[2] = 2
    created: str
    status: ExperimentStatus
    environment: Environment
    spec: AuditSpec
    metric: str
    points: list[Checkpoint]

    @property
    def measured(self) -> list[Checkpoint]:
        return [point for point in self.points if point.leak is not None]

    @property
    def label(self) -> str:
        """The metric in words."""
        return label_of(self.metric)

    def save(self, folder: Path) -> Path:
        """Write `checkpoints.json`, readable by its owner only."""
        return write_text(folder / FILE, self.model_dump_json(indent=2) + "\n")


def headline(result: Checkpoints) -> str:
    """One sentence by a fixed rule: whether the last checkpoint leaks more than the first on the same batches."""
    if len(result.measured) < 2:
        return "Fewer than two checkpoints are measured yet; run the same command again to continue."
    first, last = result.measured[0], result.measured[-1]
    assert first.leak is not None
    assert last.leak is not None
    assert last.change is not None
    went = f"{result.label} {first.leak} at step {first.step}, {last.leak} at step {last.step}"
    by = f"{last.change.mean:+.0f} [{last.change.low:+.0f}, {last.change.high:+.0f}]"
    if last.change.low > 0:
        return f"The longer it trained, the more its updates gave away: {went}, a change of {by}."
    if last.change.high < 0:
        return f"The longer it trained, the less its updates gave away: {went}, a change of {by}."
    return f"No clear change with training: {went}, a change of {by}."
