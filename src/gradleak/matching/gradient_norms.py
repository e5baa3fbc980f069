"""The norm of every sentence's own gradient, read off one pass in factors: no gradient is ever formed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from gradleak.core.errors import GradleakError
from gradleak.matching.capture import Capture
from gradleak.matching.factored import squared_norm
from gradleak.models.text import TextModel


class GradientNorms:
    """The norm of every sentence's gradient by a causal language model."""

    def __init__(self, model: TextModel) -> None:
        self.model = model
        self._names = list(model.parameters())
        self._capture = Capture(model.module, self._names, model.adapter.family.rules)

    def __call__(self, sentences: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """The loss and the gradient's norm of every sentence, each (sentences,)."""
        batch = self.model.pad(sentences)
        kept = batch.mask[:, 1:]

        def mean_losses() -> Tensor:
            logits = self.model.logits(ids=batch.ids, mask=batch.mask)
            losses = F.cross_entropy(logits[:, :-1].transpose(1, 2), batch.ids[:, 1:], reduction="none") * kept
            return losses.sum(dim=1) / kept.sum(dim=1)

        gradients, values = self._capture.gradients(mean_losses, len(sentences), 1, differentiable=False)
        unread = [name for name in self._names if name not in gradients.factored and name not in gradients.small]
        if unread:
            raise GradleakError(f"the gradient of {unread[0]} of {self.model.name} has no fast rule")
        with torch.no_grad():
            squares = [gradient.flatten(1).square().sum(dim=1) for gradient in gradients.small.values()]
            squares += [squared_norm(summands) for summands in gradients.factored.values()]
            return values.detach(), torch.stack(squares).sum(dim=0).sqrt()
