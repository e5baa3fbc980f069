"""Hashed gradients of many sequences in a batch and kept, against one sequence at a time and anew in every epoch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.attacks.inversion.features import Hashed
from gradleak.attacks.inversion.sample_gradients import SampleGradients
from gradleak.bench.ratio import Ratio, compare
from gradleak.core.errors import GradleakError
from gradleak.models.batch import Batch
from gradleak.models.load import load_text_model
from gradleak.models.text import TextModel

# How far the two ways may be apart, as a share of the largest bin: they add up in another order.
APART = 1e-4


@dataclass(frozen=True)
class LtiBench:
    """The ratios of times a sequence, once and over several epochs, and what they were measured on."""

    once: Ratio
    epochs: Ratio
    coordinates: int
    bins: int


def bench_lti(name: str, batch: int, length: int, epochs: int, seconds: float) -> LtiBench:
    """Both ways in turns on the same sequences; they must give the same bins.

    Without a defence, or with one that leaves nothing to chance, an epoch's gradients are those of the one before: we
    compute them once and keep them, the published code computes them anew.
    """
    model = load_text_model(name)
    usual = model.text_tokens.nonzero()[:, 0]
    generator = torch.Generator().manual_seed(0)
    ids = usual[torch.randint(len(usual), (batch, length), generator=generator)]
    targets = model.goal.no_targets(ids.shape, model.num_labels) if model.goal.labelled else ids
    gradients = SampleGradients(model, list(model.parameters()))
    hashed = Hashed(gradients.shapes)
    slow, fast = _alone(model, hashed, ids[:1], targets[:1]), _together(gradients, hashed, ids, targets)
    if float((slow - fast[:1]).abs().max()) > APART * float(fast.abs().max()):
        raise GradleakError("the two ways gave different bins: this is a bug, please report it")

    def all_epochs() -> None:
        kept = _together(gradients, hashed, ids, targets)
        for _ in range(epochs - 1):
            kept[torch.randperm(batch)]

    return LtiBench(
        compare(
            lambda: _alone(model, hashed, ids[:1], targets[:1]),
            lambda: _together(gradients, hashed, ids, targets),
            slow_units=1,
            fast_units=batch,
            seconds=seconds / 2,
        ),
        compare(
            lambda: _alone(model, hashed, ids[:1], targets[:1]),
            all_epochs,
            slow_units=1,
            fast_units=batch * epochs,
            seconds=seconds / 2,
        ),
        sum(parameter.numel() for parameter in model.parameters().values()),
        hashed.size,
    )


def _alone(model: TextModel, hashed: Hashed, ids: Tensor, targets: Tensor) -> Tensor:
    """The plain way: a backward pass by all weights, then the bins, for one sequence."""
    parameters = model.parameters()
    loss = model.loss(targets, ids=ids, mask=torch.ones_like(ids, dtype=torch.bool))
    found = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    return hashed.of({name: g[None] for name, g in zip(parameters, found, strict=True) if g is not None})


def _together(gradients: SampleGradients, hashed: Hashed, ids: Tensor, targets: Tensor) -> Tensor:
    batch = Batch(ids, torch.ones_like(ids, dtype=torch.bool))
    return torch.cat([hashed.of(some) for some in gradients.parts(batch, targets)])
