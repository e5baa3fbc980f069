"""What an audit of one kind of data needs: text and images offer the same, and nobody else asks which it is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from pydantic import BaseModel, Field, model_validator

from gradleak.attacks import DEFAULT_ATTACK, attacks_for
from gradleak.attacks.base import Attack, Reconstruction
from gradleak.audits.membership import CandidateLists
from gradleak.audits.spec import AuditSpec
from gradleak.clients.sender import Sender
from gradleak.core.budget import Budget
from gradleak.core.errors import GradleakError
from gradleak.core.progress import SILENT, Progress
from gradleak.core.registry import Registry
from gradleak.core.secret import Secret
from gradleak.data.pictures import Pictures
from gradleak.data.records import Completions
from gradleak.models.base import Target
from gradleak.models.tasks import Label
from gradleak.scoring.metrics import choose_metrics
from gradleak.scoring.named import Named
from gradleak.scoring.pieces import Pieces
from gradleak.scoring.score import Score
from gradleak.training.learner import Learner
from gradleak.updates.update import Update

# Where data comes from that no file holds.
GIVEN = "given in Python"

Model = TypeVar("Model", bound=Target)
Data = TypeVar("Data")
Batch = TypeVar("Batch")


class ControlScores(NamedTuple):
    """What guessing without the update reaches on a trial: mean scores, names and numbers, and tokens it hit."""

    scores: dict[str, float]
    pieces: Pieces | None = None
    named: Named | None = None


@dataclass(frozen=True)
class Attacked(Generic[Batch]):
    """One trial after the attack: the private batch, its update, what the attack made of it, seed and secret.

    Who made an update that was recorded elsewhere is not known here: it has no client.
    """

    spec: AuditSpec
    batch: Batch
    update: Update
    reconstruction: Reconstruction
    seed: int
    client: Sender | None = None
    secret: Secret | None = None


class Modality(ABC, Generic[Model, Data, Batch]):
    """One kind of data. `Data` is what a file holds, `Batch` what one client trains on."""

    name: ClassVar[str]
    # The module of the `learner`.
    training: ClassVar[str]
    # Settings of an audit that mean nothing here; setting one is an error.
    unused: ClassVar[frozenset[str]] = frozenset()

    # --- data -------------------------------------------------------------------------------------

    @abstractmethod
    def read(self, spec: AuditSpec, progress: Progress = SILENT) -> Data:
        """The data that a spec names; the progress is of what is fetched for it."""

    @abstractmethod
    def given(self, data: Any) -> Data:
        """Data handed over in Python, in the form that `read` gives."""

    @abstractmethod
    def digest(self, data: Data) -> str:
        """A hash of all examples and labels."""

    @abstractmethod
    def about(self, data: Data, model: Model) -> dict[str, Any]:
        """What a scenario says of the data: `data_rows`, `labels`, `auxiliary`."""

    def auxiliary(self, data: Data) -> Pictures | None:
        """What the attacker holds of the same kind, if the data brings it along."""
        return None

    @abstractmethod
    def draw(self, spec: AuditSpec, data: Data, model: Model) -> list[Batch]:
        """The private batches of all trials. Asking for more trials keeps the first ones as they were."""

    @abstractmethod
    def truth(self, batch: Batch, model: Model) -> Truth:
        """A batch as results and truth files hold it."""

    @abstractmethod
    def batch(self, truth: Truth, model: Model) -> Batch:
        """The batch of a truth file, which is refused if it cannot be one of this model."""

    def candidate_lists(self, spec: AuditSpec, data: Data, model: Model) -> CandidateLists | None:
        """What asks a server about candidates; None where the spec does not."""
        return None

    # --- the honest side --------------------------------------------------------------------------

    @abstractmethod
    def client(self, spec: AuditSpec, model: Model) -> Sender:
        """The client that the spec describes."""

    @abstractmethod
    def update(self, client: Any, batch: Batch, secret: Secret) -> Update:
        """What the client sends of a batch; all that it draws comes from the secret."""

    @abstractmethod
    def learner(self, spec: AuditSpec, data: Data, model: Model) -> Learner[Any]:
        """The same data as simulated training sees it."""

    # --- scoring ----------------------------------------------------------------------------------

    @abstractmethod
    def score(self, found: Reconstruction, truth: Truth, model: Model | None, metrics: Sequence[str]) -> Score:
        """Compare a reconstruction with the truth."""

    @abstractmethod
    def control(
        self,
        method: Attack,
        trials: Sequence[Attacked[Batch]],
        model: Model,
        data: Sequence[Data | None],
        budget: Budget,
        progress: Progress,
    ) -> list[ControlScores]:
        """What guessing reaches on every trial, with no look at its tensors, as well as the budget allows.

        The data of some may not be at hand.
        """

    @abstractmethod
    def facts(self, trial: Attacked[Batch], model: Model, budget: Budget) -> dict[str, Any]:
        """What else a trial of the results holds: how much of the labels was found, signal, noise, ...

        What takes long is left out when the budget is over.
        """


class Truth(BaseModel, extra="forbid"):
    """What an update was made from. Never part of the update folder."""

    texts: list[str] | None = None
    images: list[str] | None = None
    labels: list[Label] | None = None
    targets: list[str] | None = Field(default=None, description="the second texts, where an example is a pair")
    completions: list[Completions | None] | None = Field(
        default=None, description="where the answers stand in each text, by characters, if only they were predicted"
    )
    secret: str | None = Field(
        default=None, description="of the client's dropout and noise: with it the same command makes the same update"
    )

    @model_validator(mode="after")
    def _whole(self) -> Truth:
        if not self.examples or (self.texts and self.images):
            raise ValueError("it must hold texts or images")
        if self.labels is not None and len(self.labels) != len(self.examples):
            raise ValueError(f"it holds {len(self.labels)} labels for {len(self.examples)} examples")
        if self.targets is not None and len(self.targets) != len(self.examples):
            raise ValueError(f"it holds {len(self.targets)} targets for {len(self.examples)} texts")
        if self.completions is not None and len(self.completions) != len(self.texts or ()):
            raise ValueError(f"it holds completions for {len(self.completions)} of {len(self.examples)} texts")
        return self

    @property
    def compared(self) -> list[str]:
        """All that a reconstruction is compared with: where an example is a pair, its second text too."""
        return [*self.examples, *(self.targets or [])]

    @property
    def examples(self) -> list[str]:
        return (self.texts if self.images is None else self.images) or []

    @property
    def classes(self) -> list[int] | None:
        """The labels if each is one class; None if not, or if there are none."""
        classes = [label for label in self.labels or () if isinstance(label, int)]
        return classes if self.labels is not None and len(classes) == len(self.labels) else None

    @property
    def modality(self) -> str:
        return "text" if self.images is None else "images"


MODALITIES: Registry[Modality[Any, Any, Any]] = Registry(
    "modality",
    {"text": "gradleak.audits.text:TEXT", "images": "gradleak.audits.images:IMAGES"},
    base=Modality,
    group="gradleak.modalities",
    instances=True,
)


def modality_of(model: Target) -> Modality[Any, Any, Any]:
    return MODALITIES.get(model.modality)


def completed(spec: AuditSpec, modality: str) -> AuditSpec:
    """The spec with its attack filled in and its settings checked against the kind of data it is about."""
    kind = MODALITIES.get(modality)
    unused = sorted(spec.model_fields_set & kind.unused)
    if unused:
        raise GradleakError(f"{unused[0]!r} means nothing for {modality}, which {spec.model} reads")
    choose_metrics(modality, spec.metrics)
    spec = spec if spec.attack is not None else spec.with_(attack=DEFAULT_ATTACK[modality])
    method_of(spec, modality)
    return spec


def method_of(spec: AuditSpec, modality: str) -> Attack:
    """The attack of a spec with its options, which are refused here if they are wrong."""
    name = spec.attack or DEFAULT_ATTACK[modality]
    return attacks_for(modality).get(name).from_settings(spec.options)
