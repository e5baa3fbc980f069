"""Everything of an update but its tensors: which model and client made it, and what the attacker knows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from gradleak.core.reading import read_model
from gradleak.models.tasks import Label, TargetTask
from gradleak.updates.client_rule import ClientRule
from gradleak.version import __version__

MAX_MANIFEST_BYTES = 4 << 20

# What an attacker may know beside the tensors.
KNOWABLE = ("batch_size", "labels", "lengths")


class Known(BaseModel):
    """What the attacker knows beside the tensors; None is "not known"."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    batch_size: int | None = Field(default=None, ge=1, le=100_000)
    labels: tuple[Label, ...] | None = None
    lengths: tuple[int, ...] | None = Field(
        default=None, description="tokens of each sentence, special tokens counted"
    )

    @property
    def size(self) -> int | None:
        """How many sentences there are, if the attacker knows; None if not."""
        return self.batch_size or len(self.lengths or self.labels or ()) or None

    @property
    def classes(self) -> tuple[int, ...] | None:
        """The labels where each is one class."""
        return None if self.labels is None else tuple(label for label in self.labels if isinstance(label, int))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name in KNOWABLE if getattr(self, name) is not None)


def _printable(note: str) -> str:
    """Notes are shown in terminals, so they must not be able to steer one."""
    if not note.isprintable():
        raise ValueError("a note holds characters that cannot be printed")
    return note


class Manifest(BaseModel):
    """Everything in the update folder that is not a tensor."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    schema_version: Literal[1] = 1
    written_by: str = f"gradleak {__version__}"
    task: TargetTask
    family: str
    model_fingerprint: str | None = Field(default=None, description="hash of the global weights; null if unknown")
    client: ClientRule = ClientRule()
    defenses: tuple[str, ...] = Field(default=(), description="what was done to the tensors, in order")
    known: Known = Known()
    clients: int = Field(
        default=1,
        ge=1,
        le=1_000_000,
        description="of how many clients the tensors are the mean; 1: a client's own",
    )
    notes: tuple[Annotated[str, Field(max_length=400), AfterValidator(_printable)], ...] = Field(
        default=(), max_length=50, description="what the tensors are only roughly, in words"
    )

    def provenance(self) -> list[str]:
        """What an attacker should know of where the tensors come from, beyond one client's plain update.

        >>> Manifest(task="causal-lm", family="gpt2", clients=3).provenance()
        ["The update is the mean of 3 clients' updates; it is attacked as one batch of all their sentences."]
        """
        lines = [f"The manifest notes: {note}." for note in self.notes]
        if self.clients > 1:
            mean = f"The update is the mean of {self.clients} clients' updates"
            lines.insert(0, f"{mean}; it is attacked as one batch of all their sentences.")
        return lines


def read_manifest(path: Path) -> Manifest:
    """The manifest of an update folder; every claim of it is checked."""
    return read_model(path, Manifest, "an update's manifest", MAX_MANIFEST_BYTES)
