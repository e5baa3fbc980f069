"""Simulated federated training: every round some clients send their defended updates, and the server steps.

The updates are made by the very code whose updates attacks read, so what a defence costs here is what it costs the
tensors an attacker sees.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from gradleak.clients.aggregate import Mean
from gradleak.clients.sender import Sender
from gradleak.core.budget import Budget
from gradleak.core.errors import GradleakError
from gradleak.core.progress import SILENT, Progress
from gradleak.core.secret import Secret
from gradleak.core.seeds import derive_seed
from gradleak.defenses.chains import Chain
from gradleak.models.base import Target
from gradleak.training.learner import Learner
from gradleak.training.round_state import RoundState
from gradleak.updates.client_rule import ClientRule

Server = Literal["adam", "average"]

Model = TypeVar("Model", bound=Target)
Item = TypeVar("Item")

# Far below any gradient, so that a step depends on the shape of the updates and not on their size.
EPSILON = 1e-12


class RoundSettings(BaseModel):
    """How the simulated training goes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rounds: int = Field(100, ge=1, description="steps of the server")
    clients: int = Field(4, ge=1, description="clients that take part in a round")
    batch_size: int = Field(8, ge=1, description="private rows of one client")
    lr: float = Field(2e-4, gt=0, description="largest step of the server's Adam; it decays linearly to zero")
    seeds: int = Field(3, ge=1, description="repetitions, each with its own split, draws and noise")
    test_rows: int = Field(200, ge=1, description="rows held out and scored")
    max_tokens: int = Field(128, ge=3, description="longer rows are passed over")
    server: Server | None = Field(
        None,
        description="adam: a step of Adam by the mean update; average: the mean of the clients' weights (FedAvg); "
        "default: by what clients send, average for weights and adam for gradients",
    )

    def server_for(self, rule: ClientRule) -> Server:
        """How the server makes the next weights of what clients of this rule send.

        >>> RoundSettings().server_for(ClientRule.parse("adamw:lr=1e-4")), RoundSettings().server_for(ClientRule())
        ('average', 'adam')
        """
        return self.server or ("average" if rule.local else "adam")

    @property
    def rows_per_round(self) -> int:
        return self.clients * self.batch_size


def split(pool: Sequence[Item], settings: RoundSettings, seed: int) -> tuple[list[Item], list[Item]]:
    """Rows to train on and rows held out, drawn from the seed."""
    needed = settings.test_rows + settings.rows_per_round
    if len(pool) < needed:
        raise GradleakError(
            f"{settings.test_rows} test rows and {settings.clients} clients with {settings.batch_size} rows each "
            f"need {needed} rows; the data has {len(pool)} of at most {settings.max_tokens} tokens"
        )
    order = random.Random(derive_seed(seed, "split")).sample(list(pool), len(pool))
    return order[settings.test_rows :], order[: settings.test_rows]


def federate(
    learner: Learner[Any],
    model: Model,
    train: Sequence[Any],
    settings: RoundSettings,
    *,
    chain: Chain = (),
    client: ClientRule | str = "fedsgd",
    seed: int = 0,
    secret: Secret | None = None,
    budget: Budget | None = None,
    state: Path | None = None,
    progress: Progress = SILENT,
    what: str = "training",
) -> Model | None:
    """A trained copy of the model, or None if the budget ended the rounds. The model itself stays as it is.

    Examples depend on `seed` and the round alone, so every defence meets the same clients. Dropout and noise come
    from the secret, for every client of a round on its own; without one a fresh secret is drawn. With a file
    `state`, which must be this training's own, the rounds that were done before it was stopped are not done again.
    """
    trained = model.copied()
    weights = trained.parameters()
    rule = ClientRule.parse(client) if isinstance(client, str) else client
    optimizer = _server(weights, settings, rule)
    sender, limit = learner.client(trained, rule, chain), budget or Budget()
    kept = RoundState(state, weights, optimizer)
    own = (secret or Secret.draw()).child("rounds", seed, rule)
    progress.begin(what, settings.rounds, "rounds")
    try:
        begun = kept.resume()
        for number in range(begun, settings.rounds):
            sums = Mean()
            for place, examples in enumerate(_draw(train, settings, seed, number)):
                if limit.over:
                    if number > begun:
                        kept.save(number)
                    return None
                acting = in_round(sender, number + 1, settings.rounds, own.child("client", place))
                sums.add(learner.update(acting, examples, own.child(number, place)).tensors)
            if isinstance(optimizer, torch.optim.Adam):
                optimizer.param_groups[0]["lr"] = settings.lr * (1 - number / settings.rounds)
            server_step(weights, sums.value(), optimizer)
            progress.advance(number + 1)
            kept.save_sometimes(number + 1)
        kept.remove()
    finally:
        progress.end()
    return trained


def _server(
    weights: Mapping[str, torch.nn.Parameter], settings: RoundSettings, rule: ClientRule
) -> torch.optim.Optimizer:
    """The server's step. An update is weights before less weights after, so a plain step of 1 is their mean."""
    if settings.server_for(rule) == "average":
        return torch.optim.SGD(list(weights.values()), lr=1.0)
    return torch.optim.Adam(list(weights.values()), lr=settings.lr, eps=EPSILON)


def in_round(sender: Sender, number: int, rounds: int, shared: Secret) -> Sender:
    """The client as it is in one round: some defences are not the same in all of them."""
    acting = [defense.in_round(number, rounds, shared) for defense in sender.defenses]
    alike = all(one is other for one, other in zip(acting, sender.defenses, strict=True))
    return sender if alike else sender.with_defenses(acting)


def _draw(train: Sequence[Item], settings: RoundSettings, seed: int, number: int) -> Iterable[list[Item]]:
    """The private examples of each client of a round; no example is with two of them."""
    chosen = random.Random(derive_seed(seed, "round", number)).sample(list(train), settings.rows_per_round)
    return (chosen[i : i + settings.batch_size] for i in range(0, settings.rows_per_round, settings.batch_size))


def server_step(
    weights: Mapping[str, torch.nn.Parameter], mean: Mapping[str, Tensor], optimizer: torch.optim.Optimizer
) -> None:
    """One step against the mean update; a tensor that nobody sent is not moved."""
    for name, parameter in weights.items():
        parameter.grad = mean[name].to(parameter) if name in mean else None
    optimizer.step()
