"""DP-FTRL: noise of a binary tree over the rounds of a training (Kairouz et al. 2021, as Google's keyboards train).

The sum of the updates of the first t rounds is released with noise. Noise belongs to the nodes of a binary tree whose
leaves are the rounds: the prefix of t rounds is made of a few nodes, one for every bit of t, and has the noise of
these. So what a server adds up over a whole training has the noise of a few nodes, where independent noise would grow
with the number of rounds. The update of a round is the difference of two prefixes: it has the noise of the node that
joins, less that of those that it stands for from then on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Self

import torch
from pydantic import Field, PrivateAttr, model_validator
from torch import Tensor

from gradleak.core.secret import Secret
from gradleak.core.secret import generator as secret_generator
from gradleak.defenses.accounting import MOST_NOISE, spent
from gradleak.defenses.base import Defense, Promise
from gradleak.defenses.localdp import WholeClipping, scaled_down
from gradleak.models.base import Target
from gradleak.updates.client_rule import ClientRule

# A node: its height above the leaves, and its place among the nodes of that height.
Node = tuple[int, int]
MOST_ROUNDS = 1_000_000


class TreeNoise(Defense):
    summary = "DP-FTRL: the whole update is clipped, noise is that of a binary tree over the rounds of the training"
    reveals = "the clipping norm, the noise, and that noise of later rounds takes back that of earlier ones"
    lossy = False

    noise: float = Field(gt=0, le=MOST_NOISE, description="noise of every node of the tree, in units of norm")
    norm: float = Field(1.0, gt=0, description="the largest norm of an update, before noise")
    round: int = Field(1, ge=1, le=MOST_ROUNDS, description="the round that the update is of, counted from 1")
    rounds: int | None = Field(None, ge=1, le=MOST_ROUNDS, description="rounds of the training; default: up to this")
    delta: float = Field(1e-5, gt=0, lt=1, description="δ of the guarantee")
    # What the noise of nodes comes from where several rounds of one training are simulated.
    _shared: Secret | None = PrivateAttr(None)

    @model_validator(mode="after")
    def _within(self) -> Self:
        if self.rounds is not None and self.round > self.rounds:
            raise ValueError("round cannot be larger than rounds")
        return self

    def in_round(self, number: int, rounds: int, shared: Secret) -> TreeNoise:
        own = self.model_copy(update={"round": number, "rounds": rounds})
        own._shared = shared.child("tree", str(self))
        return own

    def apply(self, tensors: Mapping[str, Tensor], model: Target, generator: torch.Generator) -> dict[str, Tensor]:
        joins, leave = changed_nodes(self.round)
        sent = scaled_down(tensors, self.norm)
        for node, sign in [(joins, 1.0), *((node, -1.0) for node in leave)]:
            for name, tensor in sent.items():
                own = generator if self._shared is None else secret_generator(self._shared.child(node, name))
                drawn = torch.randn(tensor.shape, generator=own, dtype=tensor.dtype).to(tensor.device)
                sent[name] = tensor + sign * self.noise * self.norm * drawn
        return sent

    @property
    def _nodes(self) -> int:
        """How many nodes' noise the update has."""
        return 1 + len(changed_nodes(self.round)[1])

    def noise_std(self, rule: ClientRule, examples: int) -> float:
        return self.noise * self.norm * math.sqrt(self._nodes)

    def without_noise(self) -> WholeClipping:  # type: ignore[override]
        return WholeClipping(norm=self.norm)

    @property
    def _of_training(self) -> tuple[float, int]:
        """The noise multiplier of all rounds seen together, a sentence being in one of them, and their number.

        A round is in one node of every height. With the sentence and without it the update is within the norm, so
        the two are at most twice that apart.
        """
        rounds = self.rounds or self.round
        return self.noise / (2 * math.sqrt(rounds.bit_length())), rounds

    def promise(self) -> Promise:
        return Promise(self.noise * math.sqrt(self._nodes) / 2, whole=True, training=self._of_training)

    def guarantee(self) -> str:
        noise, rounds = self._of_training
        reached = spent(noise, 1.0, 1, self.delta)
        return f"{reached} at δ = {self.delta:g} after {rounds} rounds for a sentence that is in one of them"


def prefix_nodes(rounds: int) -> list[Node]:
    """The nodes that the first rounds are made of, the largest first.

    >>> prefix_nodes(6)
    [(2, 0), (1, 2)]
    """
    nodes, begun = [], 0
    for height in reversed(range(rounds.bit_length())):
        if rounds >> height & 1:
            nodes.append((height, begun >> height))
            begun += 1 << height
    return nodes


def changed_nodes(number: int) -> tuple[Node, list[Node]]:
    """The node that joins the prefix with a round, and those that leave it.

    >>> changed_nodes(4), changed_nodes(5)
    (((2, 0), [(1, 0), (0, 2)]), ((0, 4), []))
    """
    before, after = prefix_nodes(number - 1), prefix_nodes(number)
    (joins,) = [node for node in after if node not in before]
    return joins, [node for node in before if node not in after]
