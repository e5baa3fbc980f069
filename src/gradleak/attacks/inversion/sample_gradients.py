"""Every sentence's own gradient, of many sentences in a single pass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from gradleak.attacks.inversion.table_loss import table_cross_entropy
from gradleak.matching.capture import Capture, Gradients
from gradleak.models.batch import Batch
from gradleak.models.text import TextModel

# Floats of dense gradients that may exist at once: half a gigabyte.
AT_ONCE = 1 << 27


class SampleGradients:
    """The gradients of single sentences by the named parameters, as a client with a single sentence would send them.

    A single backward pass over all sentences shows the inputs and output gradients of every layer; each sentence's
    gradient is made of its own part of them.
    """

    def __init__(self, model: TextModel, names: Sequence[str]) -> None:
        self.model = model
        self.shapes = {name: tuple(model.parameters()[name].shape) for name in names}
        self._capture = Capture(model.module, names, model.adapter.family.rules)
        self._unreached: set[str] = set()
        head = model.adapter.output_layer
        wanted = {id(model.parameters()[name]) for name in names}
        plain = model.goal.autoregressive and head.bias is None and id(head.weight) not in wanted
        plain = plain and model.adapter.logit_cap is None
        # An output layer whose own gradient is not asked for has a faster loss.
        self._table = head.weight.detach() if isinstance(head.weight, Tensor) and plain else None

    def of(self, batch: Batch, targets: Tensor) -> dict[str, Tensor]:
        """Dense gradients, (sentences, *shape) a parameter; parameters the loss does not reach are left out."""
        captured, _ = self._capture.gradients(
            lambda: self._losses(batch, targets), len(batch.ids), 1, differentiable=False
        )
        dense = {name: tensor for name in self.shapes if (tensor := self._dense(name, captured)) is not None}
        missing = [name for name in self.shapes if name not in dense and name not in self._unreached]
        if missing:
            dense |= self._one_by_one(missing, batch, targets)
            self._unreached |= set(missing) - set(dense)
        return dense

    def parts(self, batch: Batch, targets: Tensor) -> Iterator[dict[str, Tensor]]:
        """The same, of as many sentences at a time as memory should hold."""
        size = max(1, AT_ONCE // max(1, sum(torch.Size(shape).numel() for shape in self.shapes.values())))
        for first in range(0, len(batch.ids), size):
            some = slice(first, first + size)
            yield self.of(Batch(batch.ids[some], batch.mask[some]), targets[some])

    def _losses(self, batch: Batch, targets: Tensor) -> Tensor:
        """Every sentence's loss, or their sum, whose derivatives are the same."""
        if self._table is None:
            return self.model.example_losses(batch, targets)
        states = self.model.module.base_model(
            input_ids=batch.ids, attention_mask=batch.mask.long(), use_cache=False
        )[0]  # fmt: skip
        kept = batch.mask[:, 1:]
        weights = (kept / kept.sum(dim=1, keepdim=True).clamp_min(1))[kept]
        return table_cross_entropy(states[:, :-1][kept], self._table, targets[:, 1:][kept], weights)

    def _one_by_one(self, names: Sequence[str], batch: Batch, targets: Tensor) -> dict[str, Tensor]:
        """Plain autograd, for parameters that no layer's rule covers."""
        wanted = [self.model.parameters()[name] for name in names]
        with torch.enable_grad():
            losses = self.model.example_losses(batch, targets)
            rows = [torch.autograd.grad(loss, wanted, retain_graph=True, allow_unused=True) for loss in losses]
        columns = dict(zip(names, zip(*rows, strict=True), strict=True))
        return {name: torch.stack(own) for name, own in columns.items() if own[0] is not None}

    def _dense(self, name: str, captured: Gradients) -> Tensor | None:
        if name in captured.small:
            dense = captured.small[name]
        elif name in captured.factored:
            dense = sum(
                (each.dense() for each in captured.factored[name][1:]), start=captured.factored[name][0].dense()
            )
        else:
            return None
        return dense.detach().reshape(-1, *self.shapes[name])
