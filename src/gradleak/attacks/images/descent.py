"""The search that IG and GI-GIP share: Adam on many independent rows at once, the best of each row kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.attacks.base import TracePoint
from gradleak.core.budget import Budget
from gradleak.core.errors import GradleakError
from gradleak.core.progress import Progress

# Shares of the steps after which the step size decays to a tenth, as IG was published.
DECAYS = (3 / 8, 5 / 8, 7 / 8)
TRACED = 20


@dataclass
class Descent:
    """Rows of images with the objective of each, and how the search went."""

    images: Tensor
    losses: Tensor
    trace: list[list[TracePoint]]

    def rows(self, chosen: Sequence[int]) -> Descent:
        return Descent(self.images[chosen], self.losses[chosen], [self.trace[row] for row in chosen])

    def or_better(self, other: Descent) -> Descent:
        """Row by row the better of two searches for the same images, the second after the first."""
        better = (other.losses < self.losses).reshape(-1, *[1] * (self.images.dim() - 1))
        last = [trace[-1].step if trace else 0 for trace in self.trace]
        later = [
            [point.model_copy(update={"step": point.step + start}) for point in trace]
            for start, trace in zip(last, other.trace, strict=True)
        ]
        return Descent(
            torch.where(better, other.images, self.images),
            torch.minimum(other.losses, self.losses),
            [a + b for a, b in zip(self.trace, later, strict=True)],
        )


def descend(
    variables: Sequence[Tensor],
    images_of: Callable[[], Tensor],
    objective: Callable[[Tensor], Tensor],
    *,
    steps: int,
    lr: float,
    signed: bool,
    boxed: bool,
    what: str,
    budget: Budget,
    progress: Progress,
) -> Descent:
    """Move the variables so that the objective of every row falls; each row's best images are the answer.

    `images_of` makes images out of the variables, whose first dimension counts rows. `signed` steps go by the sign
    of the gradient alone; `boxed` keeps the variables from 0 to 1.
    """
    optimizer = torch.optim.Adam(variables, lr=lr)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [int(share * steps) for share in DECAYS], gamma=0.1)
    with torch.no_grad():
        images = images_of()
        unknown = torch.full((len(images),), torch.inf, device=images.device)
        best = Descent(images.clone(), unknown, [[] for _ in images])
    progress.begin(what, steps, "steps")
    for step in range(steps + 1):
        images = images_of()
        losses = objective(images)
        _keep(best, images.detach(), losses.detach())
        if step % max(1, steps // TRACED) == 0:
            for row, loss in zip(best.trace, best.losses.tolist(), strict=True):
                row.append(TracePoint(step=step, loss=loss))
        if step == steps or budget.tick():
            break
        gradients = _gradients(losses.sum(), variables)
        for variable, gradient in zip(variables, gradients, strict=True):
            variable.grad = gradient.sign() if signed else gradient
        optimizer.step()
        schedule.step()
        if boxed:
            with torch.no_grad():
                for variable in variables:
                    variable.clamp_(0, 1)
        progress.advance(step + 1, loss=float(best.losses.mean()))
    progress.end()
    return best


def _gradients(loss: Tensor, variables: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """By the variables, of a loss that is made of gradients itself."""
    try:
        return torch.autograd.grad(loss, variables)
    except RuntimeError as error:
        if "is not implemented" not in str(error):
            raise
        raise GradleakError(
            f"gradients of this model cannot be matched: one of its layers has no second derivative ({error})"
        ) from error


def _keep(best: Descent, images: Tensor, losses: Tensor) -> None:
    better = losses < best.losses
    best.losses = torch.where(better, losses, best.losses)
    best.images = torch.where(better.reshape(-1, *[1] * (images.dim() - 1)), images, best.images)
