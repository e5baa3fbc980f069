"""Every token from those before it, by cross-entropy: what language models that write are trained for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from gradleak.models.tasks import Label
from gradleak.models.tasks.base import NOT_PREDICTED, Places, TextTask

if TYPE_CHECKING:
    from gradleak.models.batch import Batch
    from gradleak.models.text import TextModel
    from gradleak.updates.client_rule import ClientRule


class CausalLM(TextTask):
    name = head = "causal-lm"
    meaning = "every token from those before it"
    auto_class = "AutoModelForCausalLM"
    suffixes = ("ForCausalLM", "LMHeadModel")
    adapter_type = "CAUSAL_LM"
    quality = "perplexity"
    labelled = False
    predicts_tokens = autoregressive = True

    def targets(self, labels: Sequence[Label] | None, ids: Tensor, outputs: int) -> Tensor:
        return ids

    def no_targets(self, shape: Sequence[int], outputs: int) -> Tensor:
        return torch.zeros(tuple(shape), dtype=torch.long)

    def examples(
        self,
        model: TextModel,
        texts: Sequence[str],
        labels: Sequence[Label] | None,
        rule: ClientRule,
        generator: torch.Generator | None = None,
        completions: Sequence[Places | None] | None = None,
    ) -> tuple[Batch, Tensor]:
        from gradleak.models.completion import completion_targets
        from gradleak.models.packing import Piece, pack

        # What is cut anyway may be longer than the model takes.
        rows = model.encode(texts).sentences() if rule.pack is None else model.tokenize(texts)
        answers = rule.loss == "completion"
        targets = completion_targets(model, texts, rows, rule.marker, completions) if answers else rows
        if rule.pack is not None:
            return pack(model, rule, [Piece(*each) for each in zip(rows, targets, strict=True)])
        return model.pad(rows), model.pad(targets).ids

    def outputs(self, model: TextModel) -> int:
        return model.vocabulary_size

    def losses(self, logits: Tensor, targets: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        own = targets.reshape(mask.shape)[:, 1:]
        losses = F.cross_entropy(logits[:, :-1].flatten(0, 1), own.flatten(), reduction="none").view(own.shape)
        return losses, self._counted(targets, mask)

    def predictions(self, targets: Tensor, mask: Tensor) -> int:
        return int(self._counted(targets, mask).sum())

    def _counted(self, targets: Tensor, mask: Tensor) -> Tensor:
        return mask[:, 1:] & (targets.reshape(mask.shape)[:, 1:] != NOT_PREDICTED)


CAUSAL_LM = CausalLM()
