"""What a client computes from its batch: one gradient, or the way its weights went."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from gradleak.models.target import Batch, TargetModel
from gradleak.update import ClientRule


def local_training(model: TargetModel, batch: Batch, targets: Tensor, rule: ClientRule) -> dict[str, Tensor]:
    """The tensors a client has after training by its rule. Parameters the loss does not reach are left out."""
    with _mode(model, rule.mode):
        if rule.name == "fedsgd":
            return _gradient(model, batch, targets)
        return _difference(model, batch, targets, rule)


def _gradient(model: TargetModel, batch: Batch, targets: Tensor) -> dict[str, Tensor]:
    parameters = model.parameters()
    loss = model.loss(targets, ids=batch.ids, mask=batch.mask)
    gradients = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    return {name: g.detach() for name, g in zip(parameters, gradients, strict=True) if g is not None}


def _difference(model: TargetModel, batch: Batch, targets: Tensor, rule: ClientRule) -> dict[str, Tensor]:
    """Weights before minus weights after, in the precision the weights are sent in."""
    local = TargetModel(copy.deepcopy(model.module), model.tokenizer, model.task, model.name)
    local.module.train(model.module.training)
    weights, moved = local.parameters(), set()
    for _ in range(rule.epochs):
        for first in range(0, len(batch.ids), rule.batch):
            part = slice(first, first + rule.batch)
            gradient = _gradient(local, Batch(batch.ids[part], batch.mask[part]), targets[part])
            moved |= set(gradient)
            with torch.no_grad():
                for name, g in gradient.items():
                    weights[name].sub_(rule.lr * g)
    before = model.parameters()
    return {name: (before[name] - weights[name]).detach() for name in before if name in moved}


@contextmanager
def _mode(model: TargetModel, mode: str) -> Iterator[None]:
    model.module.train(mode == "train")
    try:
        yield
    finally:
        model.module.eval()
