"""How well dummy images explain an update, by a distance that fits what the client did to its gradient."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Literal, Self

import torch
from pydantic import Field
from torch import Tensor

from gradleak.attacks.base import AttackOptions
from gradleak.attacks.images.base import ImageAttack
from gradleak.core.errors import GradleakError
from gradleak.core.memory import SHARE, free_memory
from gradleak.defenses import known_defenses
from gradleak.models.image import ImageModel
from gradleak.models.image_gradients import batch_gradients
from gradleak.updates.gradient import as_gradient
from gradleak.updates.update import Update

TINY = 1e-12
# What a row of a search holds at a time, in sizes of the update: its target, its gradient, and what lies between.
ROW_COPIES = 8

Hinge = Literal["share", "sum"]


class MatchingOptions(AttackOptions):
    """What searches for a matching gradient have in common."""

    tv: float = Field(1e-2, ge=0, description="weight of the total variation")
    restarts: int = Field(1, ge=1, le=100, description="starts per update; the best is kept")
    hinge: Hinge = Field(
        "share",
        description="under sign compression: share of the gradient with a wrong sign, or its sum, as published",
    )


class MatchingAttack(ImageAttack):
    """A search in which all updates are rows of the same passes, as many at a time as memory allows."""

    Options = MatchingOptions
    options: MatchingOptions

    def prepared(self, model: ImageModel) -> Self:
        own = copy.copy(self)
        row = 4 * ROW_COPIES * self.options.restarts * sum(p.numel() for p in model.parameters().values())
        free = free_memory(model.device)
        if row > free:
            raise GradleakError(
                f"{self.name} needs about {row / 1e9:,.1f} GB of memory for an update of {model.name}; "
                f"{free / 1e9:,.1f} GB are free"
            )
        own.at_once = max(1, int(SHARE * free / row))
        return own


class MatchingGoal:
    """What a search lowers: a row's distance from its update, and a weight on how rough its images are."""

    def __init__(
        self, model: ImageModel, updates: Sequence[Update], labels: Tensor, options: MatchingOptions
    ) -> None:
        self.matcher, self.labels, self.tv = GradientMatcher(model, updates, options.hinge), labels, options.tv

    def __call__(self, images: Tensor, which: Tensor) -> Tensor:
        return self.matcher.distances(images, self.labels[which], which) + self.tv * total_variation(images)


class GradientMatcher:
    """Distances between the gradients of dummies and the updates they stand for, all rows at once.

    Under sign compression the distance is the squared hinge on signs that disagree, under pruning the cosine over
    the coordinates that were sent, otherwise the cosine over all (appendix A.1 of Learning To Invert).
    """

    def __init__(self, model: ImageModel, updates: Sequence[Update], hinge: Hinge = "share") -> None:
        self.model, self.hinge = model, hinge
        self.names = list(updates[0].tensors)
        if any(list(update.tensors) != self.names for update in updates):
            raise GradleakError("updates that are attacked together must hold the same tensors")
        self.targets = flat_updates(updates, model).to(model.device)
        modes = {update.manifest.client.mode for update in updates}
        if len(modes) > 1:
            raise GradleakError("updates that are attacked together must come from clients of one mode")
        self.training = "train" in modes
        named = {spec for update in updates for spec in update.manifest.defenses}
        leaves = {defense.leaves for defense in known_defenses(sorted(named)) if defense is not None}
        self.signs = "signs" in leaves
        # Where coordinates were left out, a zero says nothing about the gradient.
        self.kept = (self.targets != 0).float() if leaves & {"largest", "some"} and not self.signs else None

    def distances(self, pixels: Tensor, labels: Tensor, which: Tensor) -> Tensor:
        """Row by row, how far the gradient of these images is from the update that `which` names."""
        gradients = batch_gradients(self.model, self.names, pixels, labels, self.training)
        targets = self.targets[which]
        if self.signs:
            return hinge_distance(gradients, targets, self.hinge)
        if self.kept is not None:
            gradients = gradients * self.kept[which]
        return cosine_distance(gradients, targets)


def flat_updates(updates: Sequence[Update], model: ImageModel) -> Tensor:
    """The gradients that updates stand for, a row each."""
    return torch.stack([torch.cat([t.flatten() for t in as_gradient(u, model).tensors.values()]) for u in updates])


def cosine_distance(gradients: Tensor, targets: Tensor) -> Tensor:
    """1 − cos of every row.

    >>> cosine_distance(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 2.0]])).tolist()
    [1.0]
    """
    sizes = gradients.norm(dim=1).clamp_min(TINY) * targets.norm(dim=1).clamp_min(TINY)
    return 1 - (gradients * targets).sum(dim=1) / sizes


def hinge_distance(gradients: Tensor, signs: Tensor, hinge: Hinge = "share") -> Tensor:
    """The sum of squares of the coordinates whose sign is another, or its share of the whole squared gradient.

    >>> one, signs = torch.tensor([[2.0, -2.0, 1.0]]), torch.tensor([[1.0, 1.0, -1.0]])
    >>> hinge_distance(one, signs, "sum").tolist(), hinge_distance(one, signs).tolist()
    ([5.0], [0.5555...])
    """
    wrong = (-gradients * signs.sgn()).clamp_min(0).square().sum(dim=1)
    return wrong if hinge == "sum" else wrong / gradients.square().sum(dim=1).clamp_min(TINY)


def total_variation(images: Tensor) -> Tensor:
    """The mean absolute difference of neighbouring pixels, down and across, of every row (rows, batch, c, h, w).

    >>> total_variation(torch.tensor([0.0, 1.0, 0.0, 1.0]).reshape(1, 1, 1, 2, 2)).tolist()
    [1.0]
    """
    down = (images[..., 1:, :] - images[..., :-1, :]).abs().flatten(1).mean(dim=1)
    across = (images[..., 1:] - images[..., :-1]).abs().flatten(1).mean(dim=1)
    return down + across
