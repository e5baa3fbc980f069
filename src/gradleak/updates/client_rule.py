"""How a client trains: one gradient, or local steps of an optimiser. Loads without torch."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from gradleak.core.client_presets import PRESETS
from gradleak.core.errors import GradleakError
from gradleak.core.parameters import split_parameters, validated
from gradleak.core.registry import suggest

Precision = Literal["fp64", "fp32", "bf16", "fp16"]
# Those with few digits.
HALF: tuple[Precision, ...] = ("bf16", "fp16")

# What torch's AdamW takes where nothing is said; Adam and SGD take 0.
ADAMW_DECAY = 0.01
RULES = ("fedsgd", "fedavg", "adam", "adamw")
# The settings that say something of single rules only.
LOCAL = ("epochs", "batch", "lr", "steps", "accumulate", "wd", "decay", "schedule", "warmup")
ONLY_FOR = {"momentum": ("fedavg",), "betas": ("adam", "adamw"), "eps": ("adam", "adamw")}


def _pair(value: object) -> object:
    """Both betas as a text has them: commas separate settings, so a slash separates the two."""
    return tuple(value.split("/")) if isinstance(value, str) else value


class ClientRule(BaseModel):
    """How the client turned its data into the update; the server sets these, so the attacker knows them.

    fedsgd sends the gradient of the mean loss over the batch. The others take local steps over the batch in
    mini-batches, in order, and send weights: the update is the weights before minus the weights after. fedavg takes
    steps of SGD, adam and adamw those of torch's optimisers of these names.

    >>> str(ClientRule.parse("fedavg:epochs=2,lr=1e-4"))
    'fedavg:epochs=2,batch=1,lr=0.0001'
    >>> str(ClientRule.parse("adamw:batch=8,lr=2e-4,clip=1"))
    'adamw:epochs=1,batch=8,lr=0.0002,clip=1'
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    name: Literal["fedsgd", "fedavg", "adam", "adamw"] = "fedsgd"
    mode: Literal["eval", "train"] = Field(
        "eval", description="train: dropout is on, and batch norms use the statistics of the batch"
    )
    epochs: int = Field(1, ge=1, le=10_000, description="passes over the batch")
    batch: int = Field(1, ge=1, le=100_000, description="sentences whose gradient is computed at a time")
    lr: float = Field(5e-5, gt=0, le=10, description="step size")
    steps: int | None = Field(None, ge=1, le=1_000_000, description="steps of the optimiser, instead of epochs")
    accumulate: int = Field(1, ge=1, le=10_000, description="mini-batches whose mean gradient makes a step")
    momentum: float = Field(0.0, ge=0, lt=1, description="of SGD (fedavg)")
    betas: Annotated[tuple[float, float], BeforeValidator(_pair)] = Field(
        (0.9, 0.999), description="how slowly adam's and adamw's means forget, as 0.9/0.999"
    )
    eps: float = Field(1e-8, gt=0, le=1, description="what adam and adamw add to the divisor")
    wd: float = Field(
        0.0, ge=0, le=10, description="weight decay; adamw: of the weights themselves, 0.01 unless given; else L2"
    )
    decay: Literal["all", "matrices"] = Field(
        "all", description="what decays: all, or matrices, but no biases and norms (Hugging Face's Trainer)"
    )
    clip: float | None = Field(None, gt=0, description="norm that a step's gradient is clipped to")
    schedule: Literal["constant", "linear", "cosine"] = Field("constant", description="how the step size falls to 0")
    warmup: int = Field(0, ge=0, le=1_000_000, description="steps over which the step size first rises")
    precision: Precision = Field("fp32", description="of the weights while they are trained")
    wire: Precision = Field("fp32", description="of the numbers that are sent")
    loss: Literal["all", "completion"] = Field(
        "all", description="completion: only answers are predicted (language models)"
    )
    marker: str = Field(
        "### Response:", min_length=1, max_length=100, description="what a completion follows in a plain text"
    )
    pack: int | None = Field(None, ge=2, le=1_000_000, description="tokens of a row that texts are packed into")
    packing: Literal["bfd", "wrapped"] = Field(
        "bfd", description="bfd: whole texts, best fit first; wrapped: cut wherever a row ends"
    )
    pack_attention: Literal["own", "across"] | None = Field(
        None, description="whether packed texts see only themselves; unless given, own for bfd and across for wrapped"
    )
    mask: float = Field(0.15, gt=0, le=1, description="share of the tokens that are predicted (masked-lm)")

    @model_validator(mode="before")
    @classmethod
    def _torch_default(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("name") == "adamw" and values.get("wd") is None:
            return {**values, "wd": ADAMW_DECAY}
        return values

    @model_validator(mode="after")
    def _fits_the_rule(self) -> ClientRule:
        changed = self._changed()
        if not self.local and any(name in LOCAL for name in changed):
            raise ValueError(f"{next(n for n in changed if n in LOCAL)} belongs to local steps: fedavg, adam, adamw")
        for name, rules in ONLY_FOR.items():
            if name in changed and self.name not in rules:
                raise ValueError(f"{name} belongs to {' and '.join(rules)}, not to {self.name}")
        if self.steps is not None and self.epochs != 1:
            raise ValueError("give either steps or epochs")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError("betas lie from 0 to below 1")
        if "marker" in changed and self.loss != "completion":
            raise ValueError("marker belongs to loss=completion")
        for name in ("packing", "pack_attention"):
            if name in changed and self.pack is None:
                raise ValueError(f"{name} belongs to pack=TOKENS")
        if self.pack is not None and self.local and not self.attends_across and self.steps is None:
            raise ValueError(
                "pack: the texts do not show how many rows they make; give steps, or pack_attention=across"
            )
        if "," in self.marker or not self.marker.isprintable() or self.marker != self.marker.strip():
            raise ValueError("marker: a text that can be printed, without commas and without blanks around it")
        return self

    @classmethod
    def parse(cls, spec: str) -> ClientRule:
        """The rule of a text such as `fedavg:epochs=1,batch=1,lr=5e-5`, `fedsgd:mode=train` or `flowertune`.

        A preset's settings can be changed one by one: `flowertune:steps=2`.
        """
        name, values = split_parameters(spec, modules=False)
        preset = PRESETS.get(name)
        if preset is None and name not in RULES:
            raise GradleakError(f"client {name!r}: no such rule or preset; {suggest(name, [*RULES, *PRESETS])}")
        given = {"name": name} if preset is None else dict(preset.client)
        if "epochs" in values:
            given.pop("steps", None)  # the preset's steps are those of its own data
        return validated(cls, {**given, **values}, f"client {name!r}")

    @property
    def local(self) -> bool:
        """Whether it takes local steps and sends weights, not a gradient."""
        return self.name != "fedsgd"

    @property
    def adaptive(self) -> bool:
        """Whether each coordinate's step is divided by its own size."""
        return self.name in ("adam", "adamw")

    @property
    def rounds_on_the_wire(self) -> bool:
        """Whether what is sent loses digits on its way.

        >>> ClientRule.parse("fedavg:precision=fp64").rounds_on_the_wire
        True
        >>> ClientRule.parse("fedavg:precision=fp64,wire=fp64").rounds_on_the_wire
        False
        """
        return self.wire in HALF or (self.wire == "fp32" and self.precision == "fp64")

    @property
    def attends_across(self) -> bool:
        """Whether texts that are packed into one row see those before them."""
        return (self.pack_attention or ("own" if self.packing == "bfd" else "across")) == "across"

    @property
    def plain(self) -> bool:
        """Whether it sends the plain gradient of all its data, or takes plain steps of SGD: no more than a size and
        an order of the steps, and dropout, is to be known of it.
        """
        usual = ("mode", "epochs", "batch", "lr", "steps", "mask")
        return not self.adaptive and all(name in usual for name in self._changed())

    def mini_batches(self, sentences: int) -> Iterator[list[slice]]:
        """The mini-batches of every step over this many sentences, in order, epoch after epoch.

        As with Hugging Face's Trainer, no step takes mini-batches of two epochs: the last of an epoch has the rest.

        >>> rule = ClientRule.parse("adamw:batch=2,accumulate=2,steps=3")
        >>> [[(part.start, part.stop) for part in step] for step in rule.mini_batches(5)]
        [[(0, 2), (2, 4)], [(4, 5)], [(0, 2), (2, 4)]]
        """
        if not self.local:
            return iter([[slice(0, sentences)]])
        parts = [slice(first, min(first + self.batch, sentences)) for first in range(0, sentences, self.batch)]
        epoch = [parts[first : first + self.accumulate] for first in range(0, len(parts), self.accumulate)]
        return itertools.islice(itertools.cycle(epoch), self.count_steps(sentences))

    def times_seen(self, sentences: int) -> int:
        """The most mini-batches of an update that one sentence is in.

        >>> ClientRule.parse("fedavg:epochs=3,batch=2").times_seen(8), ClientRule().times_seen(8)
        (3, 1)
        """
        counts = Counter(part.start for step in self.mini_batches(sentences) for part in step)
        return max(counts.values(), default=1)

    def count_steps(self, sentences: int) -> int:
        """How many steps the optimiser takes over this many sentences.

        >>> ClientRule.parse("adamw:batch=4,accumulate=2,epochs=2").count_steps(12)
        4
        """
        if not self.local:
            return 1
        if self.steps is not None:
            return self.steps
        return self.epochs * math.ceil(math.ceil(sentences / self.batch) / self.accumulate)

    def rates(self, sentences: int) -> list[float]:
        """The step size of every step over this many sentences, as Hugging Face's schedules have them.

        >>> ClientRule.parse("adamw:lr=0.4,steps=5,schedule=linear,warmup=1").rates(8)
        [0.0, 0.4, 0.30000000000000004, 0.2, 0.1]
        """
        total = self.count_steps(sentences)
        return [self.lr * self._factor(step, total) for step in range(total)]

    def _factor(self, step: int, total: int) -> float:
        if step < self.warmup:
            return step / max(1, self.warmup)
        done = (step - self.warmup) / max(1, total - self.warmup)
        if self.schedule == "linear":
            return max(0.0, 1 - done)
        return max(0.0, 0.5 * (1 + math.cos(math.pi * done))) if self.schedule == "cosine" else 1.0

    def _changed(self) -> list[str]:
        """The settings that are not what the rule takes where nothing is said."""
        usual = {name: field.default for name, field in type(self).model_fields.items()}
        usual |= {"wd": ADAMW_DECAY if self.name == "adamw" else 0.0, "name": self.name}
        return [name for name, value in self if value != usual[name]]

    def __str__(self) -> str:
        always = ("epochs", "batch", "lr") if self.local and self.steps is None else ("batch", "lr")
        shown = [*(always if self.local else ()), *(n for n in self._changed() if n not in ("epochs", "batch", "lr"))]
        values = [f"{name}={_text(getattr(self, name))}" for name in shown]
        return f"{self.name}:{','.join(values)}" if values else self.name


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return "/".join(map(_text, value))
    if isinstance(value, float):
        short = f"{value:g}"
        return short if float(short) == value else repr(value)
    return str(value)
