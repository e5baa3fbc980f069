"""A whole training checked in one run: examples are in it or not by the throw of a coin (Steinke et al. 2023).

The attacker sees every update, knows the examples, and guesses of those it is surest about which were in. Each update
is, up to noise, the sum of the clipped gradients of those that were; how much of each is in it is solved for by ridge
regression, over all rounds together.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

import torch

from gradleak.audits.dp.bounds import SURE, least_epsilon
from gradleak.audits.dp.check import to_norm
from gradleak.audits.dp.result import DpCheck
from gradleak.audits.dp.subject import flat, subject
from gradleak.audits.spec import AuditSpec
from gradleak.core.budget import Budget
from gradleak.core.errors import GradleakError
from gradleak.core.progress import SILENT, Progress
from gradleak.defenses.accounting import spent
from gradleak.defenses.base import Defense
from gradleak.models.text import TextModel

EXAMPLES, ROUNDS = 128, 10
# The share of the examples that are guessed: those with the surest answers, half of them in and half out.
GUESSED = 0.5
DELTA = 1e-5
LEARNING_RATE = 0.01
ROUNDS_OF_SIZE = 8


def check_training(
    spec: AuditSpec,
    noise: float | None = None,
    examples: int = EXAMPLES,
    rounds: int = ROUNDS,
    budget: Budget | None = None,
    progress: Progress = SILENT,
    model: TextModel | None = None,
    defenses: Sequence[Defense] | None = None,
) -> DpCheck:
    """Train once on a random half of the examples, all of them in every round, and guess which half it was."""
    started, limit, rng = time.monotonic(), budget or Budget(), random.Random(spec.seed)
    if spec.client != "fedsgd":
        raise GradleakError("a whole training is checked with clients that send gradients (fedsgd)")
    given = subject(spec, noise, model, defenses, progress, moved=True)
    client, trained = given.client, given.model
    drawn = given.drawn(examples)
    within = [rng.random() < 0.5 for _ in range(examples)]
    chosen = [i for i, own in enumerate(within) if own]
    if not chosen:
        raise GradleakError("the coins left no example in the training; give more of them")
    labels = None if drawn.labels is None else [drawn.labels[i] for i in chosen]
    sums = _Sums(examples)
    for _ in range(rounds):
        if limit.tick():
            break
        # With the weights as they are in this round; the attacker knows them.
        gradients = [to_norm(own, given.clip) for own in given.gradients(drawn.texts, drawn.labels, progress)]
        update = client.update([drawn.texts[i] for i in chosen], labels).tensors
        names = sorted(update)
        rows = torch.stack([flat(own, names, torch.double) for own in gradients])
        sums.add(rows, len(chosen) * flat(update, names, torch.double))
        with torch.no_grad():
            for name, parameter in trained.parameters().items():
                if name in update:
                    parameter.sub_(LEARNING_RATE * update[name].to(parameter))
    done = sums.rounds
    if not done:
        raise GradleakError("the time was over before the first round")
    count = max(1, int(GUESSED * examples / 2))
    order = sums.shares().argsort(descending=True).tolist()
    right = sum(within[i] for i in order[:count]) + sum(not within[i] for i in order[-count:])
    promised = spent(given.promise.noise, 1.0, done, DELTA).epsilon
    least = least_epsilon(2 * count, right, examples, DELTA)
    return DpCheck(
        kind="training",
        model=trained.name,
        defenses=given.defenses,
        candidates=examples,
        tries=2 * count,
        right=right,
        promised=promised,
        least=least,
        sure=SURE,
        delta=DELTA,
        findings=[_finding(least, promised)] if least > promised else [],
        notes=[f"{done} rounds, every one with all examples that were in; ε at δ = {DELTA:g}."],
        seconds=time.monotonic() - started,
        status="completed" if done == rounds else limit.reason,
    )


class _Sums:
    """What is needed of all rounds to solve for how much of every example is in the updates."""

    def __init__(self, examples: int) -> None:
        self.gram = torch.zeros(examples, examples, dtype=torch.double)
        self.seen = torch.zeros(examples, dtype=torch.double)
        self.left, self.entries, self.rounds = 0.0, 0, 0

    def add(self, gradients: torch.Tensor, update: torch.Tensor) -> None:
        """A round: the examples' gradients, (examples, entries), and the sum that was sent."""
        gram, seen = gradients @ gradients.T, gradients @ update
        self.gram += gram
        self.seen += seen
        # What no combination of the gradients makes up is noise.
        explained = seen @ torch.linalg.lstsq(gram, seen[:, None]).solution[:, 0]
        self.left += float((update.square().sum() - explained).clamp_min(0))
        self.entries += max(1, len(update) - len(gradients))
        self.rounds += 1

    def shares(self) -> torch.Tensor:
        """Ridge regression. Shares are a coin times one size, which is not known: it is found along the way."""
        noise, size = self.left / self.entries, 1.0
        for _ in range(ROUNDS_OF_SIZE):
            ridge = 4 * noise / size**2 * torch.eye(len(self.seen), dtype=torch.double)
            found = torch.linalg.solve(self.gram + ridge, self.seen - size * self.gram.sum(1) / 2)
            size = max(1e-12, 2 * float(found.abs().mean()))
        return found


def _finding(least: float, promised: float) -> str:
    return f"The training loses ε = {least:.2f} or more, and {promised:.2f} was promised."
