"""What every attack is: it reads updates and a model, and gives back reconstructions. It never sees a truth."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from gradleak.attacks.reasons import Reason
from gradleak.core.budget import Budget, StopReason
from gradleak.core.errors import GradleakError
from gradleak.core.parameters import with_an_end
from gradleak.core.progress import SILENT, Progress
from gradleak.core.registry import suggest
from gradleak.core.text import counted
from gradleak.data.pictures import Pictures
from gradleak.models.tasks import Label, Modality, SideName
from gradleak.updates.update import Update


class Sentence(BaseModel):
    """A recovered sentence: its tokens without special tokens, its text, and how sure the attack is (0 to 1).

    What `confidence` measures is the attack's own; only what is `certified` is proved. For matching (`dlg`, `tag`,
    `lamp-*`, `subspace`) it is how much of the update the answer explains beyond random words: 0 for as little as
    these, 1 for all of it. Of a search that was cut short it is that of its embeddings, times how near tokens are.
    Noise, and other sentences of the batch that are wrong, lower it too.
    """

    model_config = ConfigDict(extra="forbid")

    text: str
    tokens: list[int]
    confidence: float = Field(ge=0, le=1)
    certified: bool = Field(default=False, description="whether the update proves that it was in the batch")
    stage: str | None = Field(default=None, description="the attack that recovered it, where several were tried")
    energy: float | None = Field(default=None, description="mean squared distance of its states from the spans")
    threshold: float | None = Field(default=None, description="the energy up to which numerical noise explains it")
    side: SideName | None = Field(
        default=None, description="where an example is a pair of texts: which of them this is"
    )
    example: int | None = Field(
        default=None, description="which texts of a pair belong together, by number, where the update proves it"
    )
    lost: int = Field(
        default=0,
        ge=0,
        description="unknown tokens among its own: neither text nor certificate covers what stood in their places",
    )


class TracePoint(BaseModel):
    """The loss at a step of the search."""

    model_config = ConfigDict(extra="forbid")

    step: int
    loss: float


class Reconstruction(BaseModel):
    """What an attack made of an update."""

    model_config = ConfigDict(extra="forbid")

    sentences: list[Sentence] = Field(default_factory=list, description="of a text model's update")
    images: list[str] = Field(default_factory=list, description="of an image model's update: PNGs as data URIs")
    certified_images: list[int] = Field(
        default_factory=list, description="the numbers, from 0, of those images that the update itself proves"
    )
    labels: list[Label] | None = Field(
        default=None,
        description="classes, or what else the task learns of a text: known to the attack or found by it",
    )
    lengths: list[int] | None = Field(default=None, description="token counts: known to the attack or found by it")
    found: list[str] = Field(default_factory=list, description="which of these the attack found by itself")
    bag: dict[str, float] = Field(default_factory=dict, description="tokens with the attack's score for each")
    counts: dict[str, int] = Field(default_factory=dict, description="how often each token of the bag may occur")
    notes: list[str] = Field(default_factory=list, description="what the attack could not do, and why")
    reasons: list[Reason] = Field(default_factory=list, description="the same as facts: a kind and its numbers")
    undone: list[str] = Field(
        default_factory=list, description="what was undone of the client's optimiser, and what could not be"
    )
    explained: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="the share of the update that the sentences explain; 0: no more than random words do",
    )
    loss: float | None = Field(default=None, description="the attack's own objective at its answer")
    trace: list[TracePoint] = Field(default_factory=list)
    seconds: float = 0.0
    peak_memory_mb: float | None = None
    status: StopReason = "completed"

    def __repr__(self) -> str:
        """What there is, without the texts and images themselves, which are private."""
        certified = sum(sentence.certified for sentence in self.sentences) + len(self.certified_images)
        parts = [
            counted(len(self.images), "image") if self.images else counted(len(self.sentences), "sentence"),
            *([f"{certified} certified"] if certified else []),
            *([f"{len(self.bag)} tokens named"] if self.bag else []),
            f"{self.status} in {self.seconds:.1f} s",
        ]
        return f"Reconstruction({', '.join(parts)})"

    __str__ = __repr__

    def add_reasons(self, *reasons: Reason) -> None:
        """Add what else the attack could not do."""
        self.reasons.extend(reasons)
        self.notes.extend(reason.text for reason in reasons)


class AttackOptions(BaseModel):
    """Base of every attack's options: unknown names and wrong types are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


Chosen = TypeVar("Chosen", bound=AttackOptions)


def with_defaults(base: type[Chosen], name: str, **defaults: Any) -> type[Chosen]:
    """The same options under other defaults; types, limits and descriptions stay those of the base.

    >>> from gradleak.attacks.search.options import MatchingOptions
    >>> with_defaults(MatchingOptions, "Hasty", steps=10)().steps
    10
    """
    fields: dict[str, Any] = {}
    for key, value in defaults.items():
        changed = copy.copy(base.model_fields[key])
        changed.default = value
        fields[key] = (changed.annotation, changed)
    return create_model(name, __base__=base, __module__=base.__module__, **fields)


class Keep(Protocol):
    """Takes the answer to an update, by its number; a final one will not get better."""

    def __call__(self, number: int, answer: Reconstruction, final: bool = False) -> None: ...


def _forget(number: int, answer: Reconstruction, final: bool = False) -> None:
    """Keep nothing."""


@dataclass(frozen=True)
class AttackContext:
    """What an attack gets beside updates and model: seeds, limits, who watches, and data of its own."""

    seeds: Sequence[int]
    """One number per update, which fixes all randomness: an answer does not depend on the updates around it."""
    budget: Budget = field(default_factory=Budget)
    progress: Progress = SILENT
    auxiliary: Pictures | None = None
    """Images of the same kind as the private ones, and none of them, that an attacker of image models has."""
    before: int = 0
    """Updates of the same run that were attacked before these, for progress."""
    after: int = 0
    """Updates of the same run that are attacked after these."""
    keep: Keep = _forget
    """Takes the best so far of an update: what is answered if the attack must be ended before it returns."""

    @property
    def total(self) -> int:
        """All updates of the run."""
        return self.before + len(self.seeds) + self.after

    def for_updates(self, numbers: Sequence[int]) -> Self:
        """The context for some of the updates."""

        def keep(number: int, answer: Reconstruction, final: bool = False) -> None:
            self.keep(numbers[number], answer, final)

        return replace(self, seeds=[self.seeds[number] for number in numbers], keep=keep)

    def with_budget(self, budget: Budget) -> Self:
        return replace(self, budget=budget)

    def portions(self, updates: Sequence[Update], at_once: int | None) -> Iterator[tuple[Sequence[Update], Self]]:
        """The updates, at most so many at a time, with a context each.

        A portion gets its share of what is left of the budget: hard updates must not take the others' time.
        """
        size = at_once or max(1, len(updates))
        for first in range(0, len(updates), size):
            portion, left = updates[first : first + size], len(updates) - first
            budget = self.budget if len(portion) == len(updates) else self.budget.part(len(portion) / left)
            own = self.for_updates(range(first, first + len(portion)))
            yield portion, replace(own, budget=budget, before=first, after=left - len(portion))


class Attack(ABC):
    """A method of reading data back from updates.

    A subclass names itself, says in a sentence what it does, lists its options, and implements `run`. It may read the
    tensors and the manifest of an update and nothing else. `gradleak.attacks.run` checks its updates and measures
    what it costs.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    modality: ClassVar[Modality] = "text"
    needs_auxiliary: ClassVar[bool] = False
    reads: ClassVar[bool] = True
    """Whether it looks at updates at all; a control does not."""
    at_once: int | None = None
    """The most updates that `run` is given at a time; None: all."""
    Options: ClassVar[type[AttackOptions]] = AttackOptions

    def memory_needed(self, update: Update, model: Any) -> int:
        """About how many bytes it takes beside model and update; 0 if that is little, or if it plans by itself."""
        return 0

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "name" not in vars(cls):  # under this name it can be asked for without being registered
            cls.name = f"{cls.__module__}:{cls.__qualname__}"

    def __init__(self, options: AttackOptions | None = None) -> None:
        self.options = options if options is not None else self.Options()

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Self:
        """The attack with these options, given by name as text or as values."""
        try:
            return cls(with_an_end(cls.Options.model_validate(dict(settings))))
        except ValidationError as error:
            first = error.errors()[0]
            name = str(first["loc"][0]) if first["loc"] else "options"
            if first["type"] == "extra_forbidden":
                hint = suggest(name, cls.Options.model_fields)
                raise GradleakError(f"attack {cls.name!r} has no option {name!r}; {hint}") from error
            raise GradleakError(f"option {name!r} of attack {cls.name!r}: {first['msg']}") from error

    @property
    def prior(self) -> str:
        """The language prior that its guesses come from, which its control must guess from too."""
        return "none"

    # Models are of type Any here so that subclasses can ask for a TextModel or an ImageModel.

    def prepared(self, model: Any) -> Self:
        """The attack as it will run on this model: options that were not given may depend on it."""
        return self

    @abstractmethod
    def run(self, updates: Sequence[Update], model: Any, context: AttackContext) -> list[Reconstruction]:
        """Attack independent updates of the same model; a reconstruction each, in order."""
