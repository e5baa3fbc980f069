"""IG, Inverting Gradients (Geiping et al. 2020): images whose gradient points where the update does."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from pydantic import Field

from gradleak.attacks.base import AttackContext, Reconstruction
from gradleak.attacks.images.answers import best_restarts, known_labels, reconstructions
from gradleak.attacks.images.descent import descend
from gradleak.attacks.images.matching import MatchingAttack, MatchingGoal, MatchingOptions
from gradleak.models.image import ImageModel
from gradleak.updates.update import Update


class IgOptions(MatchingOptions):
    steps: int = Field(1000, ge=1, description="steps of the search; published: 4800")
    lr: float = Field(0.03, gt=0, description="first step size of Adam; it decays to a tenth three times")
    signed: bool = Field(True, description="whether steps go by the sign of the gradient alone")


class Ig(MatchingAttack):
    name = "ig"
    summary = "search over pixels for the gradient's direction, smooth images preferred (Inverting Gradients)"
    Options = IgOptions
    options: IgOptions

    def run(self, updates: Sequence[Update], model: ImageModel, context: AttackContext) -> list[Reconstruction]:
        chosen = self.options
        goal = MatchingGoal(model, updates, known_labels(updates, model, self.name), chosen)
        which = torch.arange(len(updates), device=model.device).repeat_interleave(chosen.restarts)
        shape = (chosen.restarts, goal.labels.shape[1], *model.shape)
        starts = [torch.rand(shape, generator=torch.Generator().manual_seed(seed)) for seed in context.seeds]
        pixels = torch.cat(starts).to(model.device).requires_grad_()
        best = descend(
            [pixels], lambda: pixels, lambda rows: goal(rows, which), steps=chosen.steps, lr=chosen.lr,
            signed=chosen.signed, boxed=True, what="ig", budget=context.budget, progress=context.progress,
        )  # fmt: skip
        rows = best_restarts(best.losses, which, len(updates))
        return reconstructions(updates, goal.labels, best.rows(rows), context.budget)
