"""Step sizes over time."""

from __future__ import annotations

from typing import Protocol


class Schedule(Protocol):
    """The settings a step size is computed from."""

    @property
    def steps(self) -> int: ...
    @property
    def lr(self) -> float: ...
    @property
    def schedule(self) -> str: ...
    @property
    def decay(self) -> float: ...
    @property
    def decay_every(self) -> int: ...
    @property
    def linear_over(self) -> int | None: ...


def learning_rate(settings: Schedule, step: int) -> float:
    """The step size at a step: constant, decaying by a factor now and then, or decaying linearly to zero."""
    if settings.schedule == "step":
        return settings.lr * settings.decay ** (step // settings.decay_every)
    if settings.schedule == "linear":
        return settings.lr * max(0.0, 1 - step / (settings.linear_over or settings.steps))
    return settings.lr
