"""The form of `results.json`. `docs/results.md` explains it; a test pins its schema."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from gradleak.attacks.base import Reconstruction
from gradleak.audits.rows import pair_rows
from gradleak.core.budget import StopReason
from gradleak.core.environment import Environment
from gradleak.core.errors import GradleakError
from gradleak.core.files import write_text
from gradleak.core.reading import read_model
from gradleak.core.show import data_frame, html_table
from gradleak.core.text import counted
from gradleak.models.base import Target
from gradleak.models.selection import count_parameters, share_of
from gradleak.models.tasks import MODALITY_OF, Label, Modality, TargetTask
from gradleak.scoring.interval import Interval
from gradleak.scoring.membership import Confirmed, TrialCandidates
from gradleak.scoring.metrics import counts_of, figure, format_score, labels_of
from gradleak.scoring.named import Named
from gradleak.scoring.pieces import Pieces
from gradleak.scoring.scale import SCALES, Scale
from gradleak.scoring.score import Pair
from gradleak.updates.client_rule import ClientRule
from gradleak.updates.update import Update

if TYPE_CHECKING:
    import pandas

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
    adapters: str | None = Field(default=None, description="settings of the LoRA adapters that were trained, if any")
    lora: str | None = Field(default=None, description="the same of fresh ones, as --lora takes them")
    data: str
    data_rows: int
    auxiliary: int | None = Field(default=None, description="images of the same kind that the attacker holds")
    labels: Literal["given", "drawn", "none"] = Field(description="where the labels came from")
    batch_size: int | None = Field(
        description="examples of a client; null of a recorded update of which nobody told it"
    )
    clients: int = Field(default=1, description="of how many clients the attacker sees the mean; 1: a client's own")
    recorded: bool = Field(default=False, description="whether the update was made elsewhere and handed over")
    trials: int
    seed: int
    client: ClientRule
    defenses: list[str] = Field(default_factory=list, description="what was done to the update, in order")
    observed: Observed | None = Field(default=None, description="the tensors the attacker sees; null in old results")
    known: list[str] = Field(description="what the threat model grants beside the tensors")
    threat: str | None = Field(
        default=None, description="the threat model's name, with what was set otherwise; null if it was not named"
    )
    notes: list[str] = Field(default_factory=list, description="what is to be known of the model, such as a new head")
    taken_as: dict[str, str] = Field(
        default_factory=dict, description="settings of how model and data are read, where they were given"
    )

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
    truth: list[str] = Field(
        description="the private texts, or images as PNGs in data URIs; empty where the truth is not known"
    )
    labels: list[Label] | None
    reconstruction: Reconstruction
    pairs: list[Pair] = Field(
        description="true sentences with the reconstruction assigned to each; without a truth what was read back"
    )
    scores: dict[str, float] = Field(description="empty where the truth is not known")
    control_scores: dict[str, float]
    control_pieces: Pieces | None = Field(
        default=None, description="names and numbers that the control's draws hit, all draws together"
    )
    bag_size: int = Field(default=0, description="tokens that the attack named, which masked results do not hold")
    named: Named | None = Field(default=None, description="what the bag names; null if tokens were not looked for")
    control_named: Named | None = Field(
        default=None, description="the same of a bag of equal size, of the commonest tokens"
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
    lost: int | None = Field(
        default=None,
        description="those of them that the tokenizer does not know: what they stood for is lost",
    )
    signal: float | None = Field(default=None, description="norm of the update without the noise of defences")
    noise: float | None = Field(default=None, description="norm that this noise is expected to have; 0 for none")
    candidates: TrialCandidates | None = Field(
        default=None, description="what a server that has a list makes of it; null if not asked, or for lack of time"
    )
    seconds: float
    peak_memory_mb: float | None

    def __repr__(self) -> str:
        """Its scores by what audits are judged by; no text, which is private."""
        known = [scale for scale in SCALES.values() if scale.metric in self.scores]
        scores = [
            f"{scale.label} {figure(scale.metric, self.scores[scale.metric])}, "
            f"control {figure(scale.metric, self.control_scores[scale.metric])}"
            for scale in known
        ]
        return f"Trial({', '.join([f'index {self.index}', self.status, *scores])})"

    __str__ = __repr__


class Results(_Model):
    """What one audit found: the scenario, every trial, and the means over trials beside those of the control."""

    schema_version: Literal[1, 2, 3, 4] = Field(default=4, description="less in results of older versions")
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
    confirmed: Confirmed | None = Field(
        default=None, description="what a server that has candidates confirms; null if that was not asked"
    )
    secret: str | None = Field(
        default=None,
        description="that the clients' dropout and noise came from: `--secret` takes this file and repeats the audit "
        "on another machine; null if redacted",
    )

    @property
    def scored(self) -> bool:
        """Whether a truth was there to compare with."""
        return any(trial.scores for trial in self.trials)

    @model_validator(mode="after")
    def _whole(self) -> Results:
        """Every score of the summary stands beside its control; what an audit is judged by is in every trial."""
        judged = {self.scenario.scale.metric, self.scenario.scale.whole} & self.summary.keys()
        trials = [table for trial in self.trials for table in (trial.scores, trial.control_scores)]
        lacking = sorted(self.summary.keys() - self.control.keys())
        lacking += sorted(name for name in judged if any(name not in table for table in trials))
        if lacking:
            raise ValueError(f"{lacking[0]} stands in the summary, and not in the control or not in every trial")
        return self

    def save(self, folder: Path) -> Path:
        """Write `results.json`, readable by its owner only."""
        return write_text(folder / FILE, self.model_dump_json(indent=2) + "\n")

    def to_pandas(self) -> pandas.DataFrame:
        """One line per true sentence, with what was read back of it and its scores, or per image with its scores."""
        return data_frame(pair_rows(self))

    def __repr__(self) -> str:
        scale, score = self.scenario.scale, ""
        if scale.metric in self.summary:
            leak, control = self.summary[scale.metric], self.control[scale.metric]
            score = f": {scale.labelled(leak)}, control {scale.format(control)}"
        elif not self.scored:
            score = ": no truth to compare with"
        ended = "" if self.status == "completed" else f", {self.status}"
        return f"Results({self._title}{ended}{score})"

    __str__ = __repr__

    def _repr_html_(self) -> str:
        lines = [
            [label, format_score(name, self.summary[name]), format_score(name, self.control[name]), counts_of(name)]
            for name, label in labels_of(self.summary).items()
        ]
        return html_table(self._title, ["metric", "attack", "control", "what it counts"], lines)

    @property
    def _title(self) -> str:
        return f"{self.attack.name} on {self.scenario.model}, {counted(len(self.trials), 'trial')}"


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
    if not path.exists():
        raise GradleakError(f"{folder} holds no {FILE}; give the folder an audit wrote")
    return read_model(path, Results, "a gradleak result")
