"""The form of a finished cell: one JSON file. `docs/sweeps.md` explains it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from gradleak.audits.results import Results, Trial
from gradleak.core.budget import Budget, LimitName, parse_duration
from gradleak.core.memory import parse_memory
from gradleak.experiments.runner.jobs import AuditJob, Learned, TrainingJob

# What a cell that ran can end as. Only a completed cell says what an attack could and could not read.
Status = Literal["completed", "failed", "budget-exhausted"]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class Limits(_Model):
    """How much one cell may take; null is without limit. Cells that run together share time and steps."""

    time: str | None = Field(None, description="wall-clock time of a cell, such as 5m")
    memory: str | None = Field(None, description="memory of the process that runs a cell, such as 4GB")
    steps: int | None = Field(None, ge=1, description="steps of the attack: passes of its main loop")

    @field_validator("time")
    @classmethod
    def _time(cls, value: str | None) -> str | None:
        if value is not None:
            parse_duration(value)
        return value

    @field_validator("memory")
    @classmethod
    def _memory(cls, value: str | None) -> str | None:
        if value is not None:
            parse_memory(value)
        return value

    @property
    def seconds(self) -> float | None:
        return None if self.time is None else parse_duration(self.time)

    @property
    def bytes(self) -> int | None:
        return None if self.memory is None else parse_memory(self.memory)

    def budget(self, cells: int, within: Budget | None = None) -> Budget:
        """The time and steps that so many cells have together, counted from now; it ends when `within` does."""
        seconds = None if self.seconds is None else cells * self.seconds
        steps = None if self.steps is None else cells * self.steps
        return Budget(seconds, steps) if within is None else within.limited(seconds, steps)

    def outlive(self, cells: int, within: Budget | None) -> bool:
        """Whether `within` is over before so many cells have had the time that these limits give them.

        >>> [limits.outlive(1, Budget(60.0)) for limits in (Limits(), Limits(time="5m"), Limits(time="30s"))]
        [True, True, False]
        """
        if within is None or within.left is None:
            return False
        return self.seconds is None or within.left < cells * self.seconds

    def wider_than(self, other: Limits) -> bool:
        """Whether a cell that these other limits ended could get further under these."""
        pairs = ((self.seconds, other.seconds), (self.bytes, other.bytes), (self.steps, other.steps))
        return any(old is not None and (new is None or new > old) for new, old in pairs)


class Hashes(_Model):
    """What decided the result beside the settings."""

    model: str = Field(description="of the weights, the model's configuration and its tokenizer")
    data: str = Field(description="of all examples and labels")
    code: str = Field(description="of the source that ran: attack, defences, client, scoring, training")


class Seeds(_Model):
    """Where a cell's randomness comes from: the spec's seed, or hashes; neither order nor workers matter."""

    data: int = Field(
        description="of the texts and the control: the same for every attack; clients' noise needs a secret beside it"
    )
    attack: int = Field(description="of the attack")


class Cell(_Model):
    """One piece of an experiment before it is run: what is to be done, and what decides the outcome."""

    id: str = Field(description="the file's name: readable, and ending in the hash of all that decides the result")
    job: Annotated[AuditJob | TrainingJob, Field(discriminator="kind")]
    hashes: Hashes
    seeds: Seeds
    threads: int = Field(1, ge=1)
    group: str | None = Field(None, description="hash of the cells that run together with this one; null: alone")


class EndedCell(Cell):
    """The same after it ended."""

    schema_version: Literal[2] = 2
    status: Status
    limit: LimitName | None = Field(None, description="which limit ended it, if one did")
    error: str | None = Field(None, description="why it failed, or what a limit did")
    limits: Limits = Limits()
    attempts: int = Field(1, ge=1, description="how often it was begun; more than one if a worker died")
    seconds: float = Field(
        description="wall-clock time of the attempt that ended it, loading included, and of trials kept from before; "
        "its share if it ran in a group"
    )
    results: Results | None = Field(None, description="of an audit; null if it failed or a limit killed it")
    learned: Learned | None = Field(None, description="of a training: how good the model became")


class Part(_Model):
    """What there is of a cell that did not end: its finished trials."""

    id: str = Field(description="the cell's")
    trials: tuple[Trial, ...] = Field((), description="those that ran to their end")
    seconds: float = Field(0.0, description="what was spent, loading and what was cut included")
    cut: float = Field(0.0, description="of these, what the trial that comes next had when its turn was over")

    def joined(self, more: Part) -> Part:
        """With what another turn added."""
        trials = {trial.index: trial for trial in (*self.trials, *more.trials)}
        ordered = tuple(trials[i] for i in sorted(trials))
        return Part(id=self.id, trials=ordered, seconds=self.seconds + more.seconds, cut=more.cut)


# How many turns a trial may last that was begun within one, and how many seconds in any case.
PATIENCE, LEAST = 4.0, 2.0

# Cells that one worker runs together, mostly one; and how each of them ended.
Group = tuple[Cell, ...]
Ends = list[EndedCell]


@dataclass(frozen=True)
class Work:
    """Cells to run together, what there is of them, and who is told of the trials that are added.

    One by one: a trial after the other, for a run that may be stopped at any moment; else all in the same passes,
    which is quicker. After `turn` seconds they give way to others, at the end of a trial, and do not end. A trial
    that goes on for much longer is cut; a training is too, and goes on where it was.
    """

    cells: Group
    limits: Limits = field(default_factory=Limits)
    one_by_one: bool = False
    turn: float | None = None
    kept: Mapping[str, Part] = field(default_factory=dict)
    keep: Callable[[Part], None] = lambda _: None

    def end(self, within: Budget | None) -> Budget | None:
        """When cells that begin now must have given way, whatever they are at; `within` is the experiment's end."""
        return within if self.turn is None else (within or Budget()).turn(max(LEAST, PATIENCE * self.turn))
