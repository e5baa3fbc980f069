"""What a client computes from its batch: one gradient, or the way its weights went."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from gradleak.defenses.base import Gradient
from gradleak.models.base import Examples, Target
from gradleak.updates.client_rule import ClientRule


def plain_gradient(model: Target, batch: Examples, targets: Tensor, names: Sequence[str]) -> dict[str, Tensor]:
    """The gradient of the batch's mean loss. Parameters the loss does not reach are left out."""
    parameters = model.parameters()
    loss = model.batch_loss(batch, targets)
    gradients = torch.autograd.grad(loss, [parameters[name] for name in names], allow_unused=True)
    return {name: g.detach() for name, g in zip(names, gradients, strict=True) if g is not None}


def local_training(
    model: Target,
    batch: Examples,
    targets: Tensor,
    rule: ClientRule,
    names: Sequence[str] | None = None,
    gradient: Gradient = plain_gradient,
) -> dict[str, Tensor]:
    """The tensors a client has after training the named parameters, or all, by its rule."""
    names = list(model.parameters()) if names is None else names
    with _mode(model, rule.mode):
        if rule.name == "fedsgd":
            return gradient(model, batch, targets, names)
        return _difference(model, batch, targets, rule, names, gradient)


def _difference(
    model: Target, batch: Examples, targets: Tensor, rule: ClientRule, names: Sequence[str], gradient: Gradient
) -> dict[str, Tensor]:
    """Weights before minus weights after, in the precision the weights are sent in."""
    local = model.copied()
    weights, moved = local.parameters(), set()
    for _ in range(rule.epochs):
        for first in range(0, len(batch), rule.batch):
            part = slice(first, first + rule.batch)
            step = gradient(local, batch.part(part), targets[part], names)
            moved |= set(step)
            with torch.no_grad():
                for name, g in step.items():
                    weights[name].sub_(rule.lr * g)
    before = model.parameters()
    return {name: (before[name] - weights[name]).detach() for name in before if name in moved}


@contextmanager
def _mode(model: Target, mode: str) -> Iterator[None]:
    model.module.train(mode == "train")
    try:
        yield
    finally:
        model.module.eval()
