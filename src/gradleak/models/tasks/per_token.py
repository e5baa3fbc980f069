"""What tasks share that predict something of each token where it stands."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from gradleak.models.tasks.base import NOT_PREDICTED, TextTask

# Of the share that a predicted token has, the least that is taken for one.
CLEAR = 0.2


class PerToken(TextTask):
    """A class, or another token, for every token of a text or for some."""

    def no_targets(self, shape: Sequence[int], outputs: int) -> Tensor:
        return torch.zeros(tuple(shape), dtype=torch.long)

    def losses(self, logits: Tensor, targets: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        own = targets.reshape(mask.shape)
        losses = F.cross_entropy(logits.flatten(0, 1), own.flatten(), reduction="none").view(mask.shape)
        return losses, mask & (own != NOT_PREDICTED)

    def predictions(self, targets: Tensor, mask: Tensor) -> int:
        return int((mask & (targets != NOT_PREDICTED)).sum())


def pulled_up(slope: Tensor, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """For every token what its loss pulls up, how much it counts in the mean, and whether it was predicted at all."""
    pulls, classes = slope[0].min(dim=-1)
    own = logits[0].softmax(dim=-1).gather(1, classes[:, None])[:, 0].to(pulls)
    shares = -pulls / (1 - own).clamp_min(1e-12)
    return classes, shares, shares > CLEAR * shares.max()
