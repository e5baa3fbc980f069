"""What a client computes from its batch: one gradient, or the way its weights went."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from gradleak.core.errors import GradleakError
from gradleak.core.tensor_files import is_finite
from gradleak.defenses.base import Gradient
from gradleak.models.base import Examples, Target
from gradleak.updates.client_rule import ClientRule
from gradleak.updates.decay import decaying
from gradleak.updates.precision import DTYPES


def plain_gradient(model: Target, batch: Examples, targets: Tensor, names: Sequence[str]) -> dict[str, Tensor]:
    """The gradient of the batch's mean loss. Parameters the loss does not reach are left out."""
    parameters = model.parameters()
    loss = model.batch_loss(batch, targets)
    gradients = torch.autograd.grad(loss, [parameters[name] for name in names], allow_unused=True)
    return _apart({name: g.detach() for name, g in zip(names, gradients, strict=True) if g is not None})


def _apart(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Each in memory of its own: where two parameters are added, autograd gives parts of one gradient to both."""
    taken: set[int] = set()
    for name, tensor in tensors.items():
        place = tensor.untyped_storage().data_ptr()
        if place in taken:
            tensors[name] = tensor.clone()
        taken.add(place)
    return tensors


def local_training(
    model: Target,
    batch: Examples,
    targets: Tensor,
    rule: ClientRule,
    names: Sequence[str] | None = None,
    gradient: Gradient = plain_gradient,
) -> dict[str, Tensor]:
    """The tensors a client has after training the named parameters, or all, by its rule.

    They have the precision of the model's weights; what is lost on the wire is `clients/wire.py`'s.
    """
    names = list(model.parameters()) if names is None else names
    with in_mode(model, rule.mode), _kernels(rule):
        alike = rule.precision == "fp32"  # what is frozen can then be shared: nothing writes to it
        local = model.copied(frozen=not alike) if rule.local or not alike else model
        if rule.precision != "fp32":
            _cast(local, DTYPES[rule.precision])
        steps = _steps(local, batch, targets, rule, names, gradient)
        tensors = _movement(model, local, steps, len(batch), rule) if rule.local else next(steps)
    weights = model.parameters()
    return finite({name: tensor.to(weights[name].dtype) for name, tensor in tensors.items()}, f"training by {rule}")


def _movement(
    model: Target, local: Target, steps: Iterator[dict[str, Tensor]], size: int, rule: ClientRule
) -> dict[str, Tensor]:
    """Weights before minus weights after, both as they are in the precision of the training.

    Whoever trains in bf16 has a global model in bf16 too, so a weight that did not move shows a zero.
    """
    weights, moved = local.parameters(), set()
    optimizer = _optimizer(local, rule)
    # A gradient is computed once the step before it is taken: `steps` looks at the weights as they are then.
    for rate, step in zip(rule.rates(size), steps, strict=True):
        moved |= set(step)
        for group in optimizer.param_groups:
            group["lr"] = rate
        for name, weight in weights.items():
            weight.grad = step.get(name)
        optimizer.step()
    before = model.parameters()
    return {
        name: (before[name].to(weight.dtype).to(before[name].dtype) - weight).detach()
        for name, weight in weights.items()
        if name in moved
    }


def _steps(
    local: Target, batch: Examples, targets: Tensor, rule: ClientRule, names: Sequence[str], gradient: Gradient
) -> Iterator[dict[str, Tensor]]:
    """The gradient of every step: that of its mini-batches together, clipped."""
    for parts in rule.mini_batches(len(batch)):
        found = [(batch.part(part), targets[part]) for part in parts]
        gradients = [gradient(local, some, own, names) for some, own in found]
        if gradient is plain_gradient:
            # As Hugging Face's Trainer (num_items_in_batch): the mean over all tokens of the step, whatever
            # mini-batch they are in. Defences of single sentences take means over sentences.
            counts = [local.predictions(some, own) for some, own in found]
        else:
            counts = [len(some) for some, _ in found]
        yield _clipped(_mean(gradients, counts), rule.clip)


def _mean(gradients: Sequence[dict[str, Tensor]], counts: Sequence[int]) -> dict[str, Tensor]:
    if len(gradients) == 1:
        return gradients[0]
    total: dict[str, Tensor] = {}
    for gradient, count in zip(gradients, counts, strict=True):
        for name, g in gradient.items():
            weighted = g * (count / sum(counts))
            total[name] = total[name] + weighted if name in total else weighted
    return total


def _clipped(gradient: dict[str, Tensor], most: float | None) -> dict[str, Tensor]:
    """Scaled down to a norm over all coordinates, by torch's own function."""
    if most is None:
        return gradient
    carriers = {name: torch.nn.Parameter(torch.empty_like(g)) for name, g in gradient.items()}
    for name, carrier in carriers.items():
        carrier.grad = gradient[name].clone()
    torch.nn.utils.clip_grad_norm_(carriers.values(), most)
    return {name: carrier.grad for name, carrier in carriers.items() if carrier.grad is not None}


def _optimizer(local: Target, rule: ClientRule) -> torch.optim.Optimizer:
    """Torch's optimiser of the rule. Weights without a gradient stay as they are: they do not even decay."""
    decay = decaying(local, rule)
    weights = local.parameters()
    groups: list[dict[str, Any]] = [
        {"params": [p for name, p in weights.items() if name in decay], "weight_decay": rule.wd},
        {"params": [p for name, p in weights.items() if name not in decay], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if rule.name == "fedavg":
        return torch.optim.SGD(groups, lr=rule.lr, momentum=rule.momentum)
    kind = torch.optim.AdamW if rule.name == "adamw" else torch.optim.Adam
    return kind(groups, lr=rule.lr, betas=rule.betas, eps=rule.eps)


def _cast(local: Target, dtype: torch.dtype) -> None:
    """The parameters alone: rotary angles stay in fp32, as they do where a model is loaded in half precision."""
    for parameter in local.module.parameters():
        parameter.data = parameter.data.to(dtype)


def finite(tensors: dict[str, Tensor], where: str) -> dict[str, Tensor]:
    """The tensors, unless some number is too large for where they were, or none at all."""
    for name, tensor in tensors.items():
        if not is_finite(tensor):
            raise GradleakError(f"{where} gives values of {name} that are not finite")
    return tensors


@contextmanager
def _kernels(rule: ClientRule) -> Iterator[None]:
    """Half precision by torch's own kernels. Those of oneDNN are quicker, but use what a processor says it can do:
    some virtual machines say more than they can, and the process ends without a word.
    """
    if rule.precision == "fp32":
        yield
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a switch that is for GPUs
        with torch.backends.mkldnn.flags(enabled=False):
            yield


@contextmanager
def in_mode(model: Target, mode: str) -> Iterator[None]:
    """Train or eval inside the block, eval after it.

    Batch norms count statistics while they train; those of the model under audit stay as they were.
    """
    before = {name: buffer.clone() for name, buffer in model.module.named_buffers()} if mode == "train" else {}
    model.module.train(mode == "train")
    try:
        yield
    finally:
        model.module.eval()
        for name, buffer in before.items():
            model.module.get_buffer(name).copy_(buffer)
