"""GI-GIP (Jeon et al. 2021): a search over a generator's latent vectors instead of pixels, then over its weights."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from pydantic import Field
from torch import Tensor

from gradleak.attacks.base import AttackContext, Reconstruction
from gradleak.attacks.images.answers import best_restarts, known_labels, reconstructions
from gradleak.attacks.images.descent import Descent, descend
from gradleak.attacks.images.generator import Generator, trained_generator
from gradleak.attacks.images.matching import MatchingAttack, MatchingGoal, MatchingOptions
from gradleak.core.budget import Budget
from gradleak.core.progress import Progress
from gradleak.models.image import ImageModel
from gradleak.updates.update import Update


class GiGipOptions(MatchingOptions):
    latent_steps: int = Field(200, ge=1, description="steps of the search over latent vectors")
    latent_lr: float = Field(0.05, gt=0, description="first step size of that search")
    weight_steps: int = Field(300, ge=0, description="steps of the search over the generator's weights")
    weight_lr: float = Field(3e-3, gt=0, description="first step size of that search")
    tv: float = Field(1e-3, ge=0, description="weight of the total variation")
    restarts: int = Field(2, ge=1, le=100, description="latent starts per update; the best is refined")
    latent: int = Field(128, ge=1, le=4096, description="numbers of a latent vector")
    width: int = Field(16, ge=1, le=256, description="channels of the generator's last layer")
    epochs: int = Field(30, ge=1, description="passes over the auxiliary images when the generator is trained")
    mixed: bool = Field(False, description="multiply in bfloat16 then: about twice as many steps a minute")


class GiGip(MatchingAttack):
    name = "gi-gip"
    summary = "search in the latent space of a generator trained on auxiliary images, then over its weights (GI-GIP)"
    needs_auxiliary = True
    Options = GiGipOptions
    options: GiGipOptions

    def run(self, updates: Sequence[Update], model: ImageModel, context: AttackContext) -> list[Reconstruction]:
        assert context.auxiliary is not None  # `run_attack` has seen to it
        chosen, budget, progress = self.options, context.budget, context.progress
        generator = trained_generator(
            context.auxiliary, chosen.latent, chosen.width, chosen.epochs, model.device, budget, progress,
            chosen.mixed,
        )  # fmt: skip
        goal = MatchingGoal(model, updates, known_labels(updates, model, self.name), chosen)
        first, latents = self._search_latents(generator, goal, context.seeds, budget, progress)
        best = self._search_weights(generator, goal, first, latents, budget, progress)
        return reconstructions(updates, goal.labels, best, budget)

    def _search_latents(
        self, generator: Generator, goal: MatchingGoal, seeds: Sequence[int], budget: Budget, progress: Progress
    ) -> tuple[Descent, Tensor]:
        """For every update the best of its starts, and the latent vectors there."""
        chosen = self.options
        which = torch.arange(len(seeds), device=goal.labels.device).repeat_interleave(chosen.restarts)
        shape = (chosen.restarts, goal.labels.shape[1], chosen.latent)
        starts = [torch.randn(shape, generator=torch.Generator().manual_seed(seed)) for seed in seeds]
        latents = torch.cat(starts).to(which.device).requires_grad_()

        def images() -> Tensor:
            return generator(latents.flatten(0, 1)).unflatten(0, latents.shape[:2])

        best = descend(
            [latents], images, lambda rows: goal(rows, which), steps=chosen.latent_steps, lr=chosen.latent_lr,
            signed=False, boxed=False, what="gi-gip: latent vectors", budget=budget, progress=progress,
        )  # fmt: skip
        rows = best_restarts(best.losses, which, len(seeds))
        return best.rows(rows), latents.detach()[rows]

    def _search_weights(
        self,
        generator: Generator,
        goal: MatchingGoal,
        start: Descent,
        latents: Tensor,
        budget: Budget,
        progress: Progress,
    ) -> Descent:
        """Every update gets a generator of its own, which is fitted to it while the latent vectors stay."""
        chosen, which = self.options, torch.arange(len(latents), device=latents.device)
        names = [name for name, _ in generator.named_parameters()]
        own = [p.detach().expand(len(latents), *p.shape).clone().requires_grad_() for p in generator.parameters()]

        def image(weights: list[Tensor], latent: Tensor) -> Tensor:
            made: Tensor = torch.func.functional_call(generator, dict(zip(names, weights, strict=True)), (latent,))
            return made

        refined = descend(
            own, lambda: torch.func.vmap(image)(own, latents), lambda rows: goal(rows, which),
            steps=chosen.weight_steps, lr=chosen.weight_lr, signed=False, boxed=False, what="gi-gip: weights",
            budget=budget, progress=progress,
        )  # fmt: skip
        return start.or_better(refined)
