"""What every defence is: something a client does before its update leaves."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Literal, NamedTuple, Self

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from gradleak.core.secret import Secret
from gradleak.models.base import Examples, Target
from gradleak.updates.client_rule import ClientRule

# The gradient of a batch by the named parameters, as one local step computes it.
Gradient = Callable[[Target, Examples, Tensor, Sequence[str]], dict[str, Tensor]]

# The signs of the coordinates, the largest of them, or a random choice; the others are zero.
Leaves = Literal["signs", "largest", "some"]


class Promise(NamedTuple):
    """What differential privacy holds whatever an attacker does.

    `noise` is Gaussian, in units of the most that one example can change of what it is added to: the sum of every
    local step, or the `whole` update once. `sample_rate` and `steps` are those of the whole training, if it was
    described. Where noise of several updates is not independent, `training` has the multiplier that all of them
    together come to, an example being in one, and their number.
    """

    noise: float
    sample_rate: float | None = None
    steps: int | None = None
    whole: bool = False
    training: tuple[float, int] | None = None


class Defense(BaseModel, ABC):
    """A subclass has a sentence on what it does, one on what it reveals, and its strengths as fields.

    It overrides the place where it acts: which parameters are trained, how a local step's gradient is computed, or
    what is done to the tensors that are sent.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    summary: ClassVar[str]
    reveals: ClassVar[str]
    # Attacks and the verdict ask for these. The defaults are the worst case.
    random: ClassVar[bool] = True  # the same gradient is sent differently each time
    coordinatewise: ClassVar[bool] = False  # every coordinate is treated alone, or a tensor is sent whole or not
    lossy: ClassVar[bool] = True  # values are rounded or taken away
    leaves: ClassVar[Leaves | None] = None  # which part of the gradient shows in what is sent; None for all of it
    clips: ClassVar[bool] = False  # single examples' gradients are scaled down, each by a factor of its own

    @property
    def name(self) -> str:
        """What `--defense` and `parse_defenses` take for it."""
        from gradleak.defenses import DEFENSES

        return DEFENSES.name_of(type(self))

    @property
    def alters(self) -> bool:
        """Whether it changes the numbers of an update, so that after local steps no weights can be sent."""
        return type(self).apply is not Defense.apply

    @property
    def whole(self) -> bool:
        """Whether it needs a gradient as a whole: it changes what is sent, or how a gradient is computed."""
        return self.alters or type(self).gradient is not Defense.gradient

    def trained(self, names: Sequence[str], model: Target) -> list[str]:
        """Those of the parameters that are still trained."""
        return list(names)

    def copies(self, examples: int) -> int:
        """How many more of an update it holds in memory than are there without it, for a step of so many examples."""
        return 1 if self.alters else 0

    def gradient(self, generator: torch.Generator) -> Gradient | None:
        """Its own way to compute the gradient of a local step; None if it leaves that alone."""
        return None

    def apply(self, tensors: Mapping[str, Tensor], model: Target, generator: torch.Generator) -> dict[str, Tensor]:
        """The tensors as they are sent; all randomness comes from the generator."""
        return dict(tensors)

    def in_round(self, number: int, rounds: int, shared: Secret) -> Defense:
        """The same defence in one round of a simulated training, counted from 1, where rounds differ.

        What depends on more than one round of a client is drawn from `shared`.
        """
        return self

    def apply_many(
        self, tensors: Mapping[str, Tensor], model: Target, generator: torch.Generator
    ) -> dict[str, Tensor]:
        """What `apply` does to each of many updates, given as tensors of shape (updates, *shape)."""
        if self.coordinatewise:
            return self.apply(tensors, model, generator)
        updates = len(next(iter(tensors.values())))
        sent = [self.apply({name: t[i] for name, t in tensors.items()}, model, generator) for i in range(updates)]
        return {name: torch.stack([update[name] for update in sent]) for name in sent[0]}

    def noise_std(self, rule: ClientRule, examples: int) -> float | None:
        """Standard deviation of the noise it puts on a coordinate of the update; 0 if it adds none.

        None if no formula gives it, as behind an optimiser that divides by the size of what it gets: it is measured
        then, by an update without the noise.
        """
        return 0.0

    def without_noise(self) -> Self | None:
        """The same defence without its noise; None if it does nothing else."""
        return self

    def guarantee(self) -> str | None:
        """What it promises whatever an attacker does, in words; None if it promises nothing."""
        return None

    def promise(self) -> Promise | None:
        """The same as numbers, for ceilings; None if it promises nothing."""
        return None

    def __str__(self) -> str:
        values = ",".join(f"{key}={value}" for key, value in self.model_dump(exclude_none=True).items())
        return f"{self.name}:{values}" if values else self.name
