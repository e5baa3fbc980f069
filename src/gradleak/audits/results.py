"""The form of `results.json`. `docs/results.md` explains it; a test pins its schema."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gradleak.attacks.base import Reconstruction
from gradleak.core.budget import StopReason
from gradleak.core.environment import Environment
from gradleak.core.errors import GradleakError
from gradleak.core.files import write_text
from gradleak.core.text import counted
from gradleak.models.base import Target
from gradleak.models.selection import count_parameters, share_of
from gradleak.models.tasks import MODALITY_OF, Modality, TargetTask
from gradleak.scoring.interval import Interval
from gradleak.scoring.pieces import Pieces
from gradleak.scoring.scale import SCALES, Scale
from gradleak.scoring.score import Pair
from gradleak.updates.client_rule import ClientRule
from gradleak.updates.update import Update

FILE = "results.json"


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", protected_namespaces=())


class Observed(_Model):
    """The part of the update that the attacker was shown."""

    selection: str = Field(description="as it was chosen, such as layer:6.query")
    tensors: int
    parameters: int = Field(description="numbers these tensors hold")
    share: float = Field(description="the same in percent of the model's trainable parameters")

    @property
    def sentence(self) -> str:
        """
        >>> Observed(selection="layer:6.query", tensors=1, parameters=147456, share=0.649).sentence
        'Of the update the attacker sees layer:6.query: 1 tensor, 147,456 parameters, 0.649 % of the model.'
        """
        return (
            f"Of the update the attacker sees {self.selection}: {counted(self.tensors, 'tensor')}, "
            f"{self.parameters:,} parameters, {self.share:.3g} % of the model."
        )


class Scenario(_Model):
    """What was audited, and what the attacker was given."""

    model: str
    family: str
    task: TargetTask
    model_fingerprint: str
    parameters: int
    data: str
    data_rows: int
    auxiliary: int | None = Field(default=None, description="images of the same kind that the attacker holds")
    labels: Literal["given", "drawn", "none"] = Field(description="where the labels came from")
    batch_size: int
    trials: int
    seed: int
    client: ClientRule
    defenses: list[str] = Field(default_factory=list, description="what was done to the update, in order")
    observed: Observed | None = Field(default=None, description="the tensors the attacker sees; null in old results")
    known: list[str] = Field(description="what the threat model grants beside the tensors")

    @property
    def modality(self) -> Modality:
        """What its examples are: text or images."""
        return MODALITY_OF[self.task]

    @property
    def scale(self) -> Scale:
        """By what it is judged."""
        return SCALES[self.modality]


class AttackInfo(_Model):
    """Which attack, with every option it ran with."""

    name: str
    options: dict[str, Any]


class Trial(_Model):
    """One update: the truth, what was read back from it, and how close that came."""

    index: int
    seed: int
    status: StopReason
    truth: list[str] = Field(description="the private texts, or images as PNGs in data URIs")
    labels: list[int] | None
    reconstruction: Reconstruction
    pairs: list[Pair] = Field(description="true sentences with the reconstruction assigned to each")
    scores: dict[str, float]
    control_scores: dict[str, float]
    control_pieces: Pieces | None = Field(
        default=None, description="names and numbers that the control's draws hit, all draws together"
    )
    found: dict[str, float] = Field(
        default_factory=dict,
        description="share of labels and lengths found right, in percent, where they were not told",
    )
    truth_distance: float | None = Field(
        default=None,
        description="mean of 1 - cos over parameters between the update and the gradient of the true batch",
    )
    tokens: int | None = Field(default=None, description="tokens of the true batch, special ones counted")
    signal: float | None = Field(default=None, description="norm of the update without the noise of defences")
    noise: float | None = Field(default=None, description="norm that this noise is expected to have; 0 for none")
    seconds: float
    peak_memory_mb: float | None


class Results(_Model):
    """One audit."""

    schema_version: Literal[1] = 1
    created: str
    status: StopReason
    redacted: bool = False
    environment: Environment
    scenario: Scenario
    attack: AttackInfo
    trials: list[Trial]
    summary: dict[str, Interval]
    control: dict[str, Interval]
    found: dict[str, Interval] = Field(default_factory=dict, description="labels and lengths the attack had to find")

    def save(self, folder: Path) -> Path:
        """Write `results.json`, readable by its owner only."""
        return write_text(folder / FILE, self.model_dump_json(indent=2) + "\n")


def observed(update: Update, selection: str, model: Target) -> Observed:
    """What of the model an update shows."""
    return Observed(
        selection=selection,
        tensors=len(update.tensors),
        parameters=count_parameters(update.tensors, model),
        share=share_of(update.tensors, model),
    )


def load_results(folder: str | Path) -> Results:
    """Read the results of an audit back."""
    path = Path(folder) / FILE
    if not path.is_file():
        raise GradleakError(f"{folder} holds no {FILE}; give the folder an audit wrote")
    try:
        return Results.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise GradleakError(f"{path} is not a gradleak result: {where}: {first['msg']}") from error
