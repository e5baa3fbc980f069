"""The norm of every sentence's own gradient, read off one pass in factors: no gradient is ever formed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from gradleak.core.errors import GradleakError
from gradleak.matching.capture import Capture
from gradleak.matching.uses import square
from gradleak.models.text import TextModel


class GradientSizes:
    """Norms of the whole gradient of a causal language model, one a sentence."""

    def __init__(self, model: TextModel) -> None:
        self.model = model
        self._names = list(model.parameters())
        self._capture = Capture(model.module, self._names, model.adapter.family.rules)

    def __call__(self, sentences: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """The loss and the gradient's norm of every sentence, each (sentences,)."""
        batch = self.model.pad(sentences)
        kept = batch.mask[:, 1:]

        def losses() -> Tensor:
            logits = self.model.logits(ids=batch.ids, mask=batch.mask)
            own = F.cross_entropy(logits[:, :-1].transpose(1, 2), batch.ids[:, 1:], reduction="none") * kept
            return own.sum(dim=1) / kept.sum(dim=1)

        found, values = self._capture.gradients(losses, len(sentences), 1, differentiable=False)
        unread = [name for name in self._names if name not in found.uses and name not in found.small]
        if unread:
            raise GradleakError(f"the gradient of {unread[0]} of {self.model.name} has no fast rule")
        with torch.no_grad():
            squares = [own.flatten(1).square().sum(dim=1) for own in found.small.values()]
            squares += [square(uses) for uses in found.uses.values()]
            return values.detach(), torch.stack(squares).sum(dim=0).sqrt()
