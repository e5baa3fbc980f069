"""Training an inverter, whatever it reads and gives back.

A `Problem` says what is learned: the network, fresh examples, a loss, and examples held out of the auxiliary data.
The loop does the rest: a warm-up and a decaying step size, the best weights by the held-out loss, an early stop,
and state written now and then, so that the same command goes on after a stop.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from gradleak.core.budget import Budget, StopReason
from gradleak.core.errors import GradleakError
from gradleak.core.files import fill_state, replacing
from gradleak.core.progress import SILENT, Progress

STATE_FILE = "training.pt"
SAVE_SECONDS = 60.0

# What the network gets, and what it should give back.
Example = tuple[Tensor, Tensor]


class TrainSettings(BaseModel):
    """How an inverter is trained."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    steps: int = Field(300, ge=1, description="steps of Adam")
    batch: int = Field(32, ge=1, description="examples of a step")
    lr: float = Field(1e-3, gt=0, description="largest step size")
    warmup: float = Field(0.05, ge=0, le=1, description="share of the steps over which the step size grows")
    final: float = Field(0.02, ge=0, le=1, description="share of the step size that is left at the end")
    clip: float = Field(1.0, gt=0, description="largest norm of a step's gradient")
    check: int = Field(50, ge=1, description="steps between two looks at the held-out examples")
    patience: int = Field(8, ge=1, description="looks without a lower loss after which the training ends")
    mixed: bool = Field(False, description="whether the network multiplies in bfloat16; weights stay in fp32")
    seed: int = 0

    def step_size(self, step: int) -> float:
        """Rising linearly, then decaying along half a cosine.

        >>> settings = TrainSettings(steps=100, lr=1.0, warmup=0.1, final=0.0)
        >>> [round(settings.step_size(step), 2) for step in (0, 9, 55, 100)]
        [0.1, 1.0, 0.5, 0.0]
        """
        rising = max(1, round(self.warmup * self.steps))
        if step < rising:
            return self.lr * (step + 1) / rising
        done = (step - rising) / max(1, self.steps - rising)
        return self.lr * (self.final + (1 - self.final) * 0.5 * (1 + math.cos(math.pi * min(1.0, done))))


class Problem(ABC):
    """What is learned. The network is built from a seed by whoever makes the problem."""

    network: nn.Module
    identity: str
    """Changes with everything that decides the result, beside the settings of the training."""

    @abstractmethod
    def draw(self, step: int, count: int) -> Example:
        """Examples to learn from; they follow from the step alone, so that a resumed run is the same run."""

    @abstractmethod
    def held_out(self) -> Sequence[Example]:
        """Examples of the auxiliary data that are never learned from, the same each time."""

    @abstractmethod
    def loss(self, outputs: Tensor, wanted: Tensor) -> Tensor:
        """The mean loss of some examples."""


class Look(BaseModel):
    """The losses at a step of the training."""

    model_config = ConfigDict(extra="forbid")

    step: int
    training: float = Field(description="mean over the steps since the last look")
    held_out: float


class Training(BaseModel):
    """How a training went."""

    # A training that ends before its first look has no loss yet, and must be read back all the same.
    model_config = ConfigDict(extra="forbid", ser_json_inf_nan="constants")

    status: StopReason
    step: int
    best_step: int
    best_loss: float
    seconds: float
    looks: list[Look]


def train(
    problem: Problem, settings: TrainSettings, folder: Path, budget: Budget, progress: Progress = SILENT
) -> Training:
    """Train the problem's network; it has its best weights afterwards. State lies in the folder until it is done.

    "completed" is also what ends early because the held-out loss no longer falls. After any other stop the same call
    goes on where it was.
    """
    run = _Run(problem, settings, folder)
    progress.begin("training", settings.steps, "steps")
    try:
        finished = run.steps(budget, progress)
    finally:
        progress.end()
    if finished:
        run.path.unlink(missing_ok=True)
    else:
        run.save()
        if run.step and not run.looks:  # else the best weights so far are those it began with
            run.look()
    problem.network.load_state_dict(run.best)
    problem.network.eval()
    return run.summary("completed" if finished else budget.reason)


class _Run:
    """The state of a training: weights, the best of them, the optimiser, the step."""

    def __init__(self, problem: Problem, settings: TrainSettings, folder: Path) -> None:
        self.problem, self.settings = problem, settings
        self.path = folder / STATE_FILE
        # A training that began before there was a choice goes on.
        decides = settings.model_dump_json(exclude=None if settings.mixed else {"mixed"})
        self.identity = f"{problem.identity} {decides}"
        # Fused, a step of Adam over 13 million weights takes 9 ms of a core in place of 65, and rounds otherwise.
        self.optimizer = torch.optim.Adam(problem.network.parameters(), lr=settings.lr, fused=settings.mixed)
        self.step, self.seconds, self.best_step, self.best_loss = 0, 0.0, 0, math.inf
        self.losses: list[float] = []
        self.looks: list[Look] = []
        self.best = _copied(problem.network)
        self.held_out: Sequence[Example] = ()
        if self.path.is_file():
            self._resume()

    def steps(self, budget: Budget, progress: Progress) -> bool:
        """Take the steps that are left; False if the budget ended them."""
        started = saved = time.monotonic()
        before = self.seconds
        while self.step < self.settings.steps and not self._stale:
            if budget.over:
                return False
            self.losses.append(self._step())
            self.step += 1
            self.seconds = before + time.monotonic() - started
            progress.advance(self.step, loss=self.looks[-1].held_out if self.looks else self.losses[-1])
            if self.step % self.settings.check == 0 or self.step == self.settings.steps:
                self.look()
            if time.monotonic() - saved > SAVE_SECONDS:
                self.save()
                saved = time.monotonic()
        return True

    @property
    def _stale(self) -> bool:
        return self.step - self.best_step >= self.settings.patience * self.settings.check

    def _step(self) -> float:
        network = self.problem.network.train()
        given, wanted = self.problem.draw(self.step, self.settings.batch)
        with torch.autocast(given.device.type, torch.bfloat16, enabled=self.settings.mixed):
            outputs = network(given)
        loss = self.problem.loss(outputs.float() if self.settings.mixed else outputs, wanted)
        if not bool(torch.isfinite(loss)):
            raise GradleakError(f"the training diverged at step {self.step}; try a smaller lr")
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), self.settings.clip)
        self.optimizer.param_groups[0]["lr"] = self.settings.step_size(self.step)
        self.optimizer.step()
        return float(loss.detach())

    def look(self) -> None:
        """Judge the weights by the held-out examples, and keep them if they are the best so far."""
        self.held_out = self.held_out or self.problem.held_out()
        network = self.problem.network.eval()
        with torch.no_grad():
            losses = [float(self.problem.loss(network(given), wanted)) for given, wanted in self.held_out]
        loss = sum(losses) / len(losses)
        self.looks.append(Look(step=self.step, training=sum(self.losses) / len(self.losses), held_out=loss))
        self.losses = []
        if loss < self.best_loss:
            self.best_step, self.best_loss, self.best = self.step, loss, _copied(network)

    def summary(self, status: StopReason) -> Training:
        return Training(
            status=status, step=self.step, best_step=self.best_step, best_loss=self.best_loss,
            seconds=self.seconds, looks=self.looks,
        )  # fmt: skip

    def save(self) -> None:
        state: dict[str, Any] = {
            "identity": self.identity,
            "weights": self.problem.network.state_dict(),
            "best": self.best,
            "optimizer": self.optimizer.state_dict(),
            "losses": self.losses,
            "summary": self.summary("interrupted").model_dump_json(),
        }
        with replacing(self.path) as scratch:
            fill_state(scratch, state)

    def _resume(self) -> None:
        state = torch.load(self.path, weights_only=True)
        if state["identity"] != self.identity:
            raise GradleakError(f"{self.path} belongs to another training; remove it or choose another folder")
        summary = Training.model_validate_json(state["summary"])
        self.step, self.seconds, self.looks = summary.step, summary.seconds, summary.looks
        self.best_step, self.best_loss = summary.best_step, summary.best_loss
        self.losses, self.best = list(state["losses"]), state["best"]
        self.problem.network.load_state_dict(state["weights"])
        self.optimizer.load_state_dict(state["optimizer"])


def _copied(network: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in network.state_dict().items()}
