"""The gradient of every sentence alone as a row of numbers, of many sentences in one pass.

Rows hold the matrices of linear layers, or LoRA's factors in their place; nothing else is needed to tell sentences
apart. A backward pass over several sentences shows what every layer saw and its output gradients, and each sentence's
own part of them makes its row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from gradleak.core.budget import Budget
from gradleak.matching.factored import Factors
from gradleak.matching.rules import rule_for
from gradleak.models.hooks import of_this_thread
from gradleak.models.text import TextModel

# Numbers of a row: all of a LoRA update, some layers of a full one.
LONGEST = 1 << 20
# Sentences of one pass.
AT_ONCE = 6
# Roles that see a layer's input.
ATTENTION = ("query", "key", "value")


class SomeRows(NamedTuple):
    """Some sentences of many: which they are, their rows, their losses, and every matrix's gradients in factors."""

    which: list[int]
    rows: Tensor
    losses: Tensor
    factors: list[Factors]


class GradientRows:
    """Makes rows out of gradients by the same matrices, in the same order, of sentences and of updates."""

    def __init__(self, model: TextModel, names: Sequence[str]) -> None:
        self.model = model
        self.shapes = {name: _sides(model.parameters()[name]) for name in names}
        self._owners = {module: name for name, module in linear_modules(model).items() if name in self.shapes}

    def of_update(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """The row of an update, or of the weights of a model."""
        return torch.cat([tensors[name].detach().to(self.model.device).float().flatten() for name in self.shapes])

    def matrices(self, row: Tensor) -> list[Tensor]:
        """A row as the matrices it was made of."""
        sizes = [rows * columns for rows, columns in self.shapes.values()]
        return [part.view(shape) for part, shape in zip(row.split(sizes), self.shapes.values(), strict=True)]

    def of(
        self, sentences: Sequence[Sequence[int]], labels: Sequence[int] | None, budget: Budget
    ) -> Iterator[SomeRows]:
        """Some sentences at a time. The budget ends it."""
        order = sorted(range(len(sentences)), key=lambda i: len(sentences[i]))
        for first in range(0, len(order), AT_ONCE):
            budget.check()
            some = order[first : first + AT_ONCE]
            batch = self.model.pad([sentences[i] for i in some])
            chosen = None if labels is None else torch.tensor([labels[i] for i in some], device=self.model.device)
            yield SomeRows(some, *self._pass(batch, batch.ids if chosen is None else chosen))

    def _pass(self, batch: Any, targets: Tensor) -> tuple[Tensor, Tensor, list[Factors]]:
        calls: list[tuple[nn.Module, Tensor, Tensor]] = []

        def watch(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
            calls.append((module, args[0].detach(), output))

        hooks = [module.register_forward_hook(of_this_thread(watch)) for module in self._owners]
        try:
            with torch.enable_grad():
                losses = self.model.example_losses(batch, targets)
                gradients = torch.autograd.grad(losses.sum(), [output for *_, output in calls], allow_unused=True)
        finally:
            for hook in hooks:
                hook.remove()
        uses: dict[str, list[Factors]] = {name: [] for name in self.shapes}
        for (module, seen, _), gradient in zip(calls, gradients, strict=True):  # shared layers run several times
            if gradient is not None:
                own = _own_gradients(module, seen, gradient, len(batch), self.model.adapter.family.rules)
                uses[self._owners[module]].append(own)
        factors = [_joined(own, self.shapes[name], len(batch), losses) for name, own in uses.items()]
        return torch.cat([own.dense().flatten(1) for own in factors], dim=1), losses.detach(), factors


def _joined(uses: Sequence[Factors], shape: tuple[int, int], sentences: int, like: Tensor) -> Factors:
    """The sum of the gradients of all uses of a matrix."""
    if not uses:
        return Factors(*(like.new_zeros(sentences, 1, side).detach() for side in shape))
    return Factors(*(torch.cat(sides, dim=1) for sides in zip(*((own.left, own.right) for own in uses), strict=True)))


def _own_gradients(module: nn.Module, seen: Tensor, gradient: Tensor, sentences: int, rules: Any) -> Factors:
    """Every sentence's gradient of a module's weight."""
    rule = rule_for(module, rules)
    assert rule is not None
    factors = rule(
        module,
        seen.reshape(sentences, -1, seen.shape[-1]),
        gradient.detach().reshape(sentences, -1, gradient.shape[-1]),
    )["weight"]
    assert isinstance(factors, Factors)
    return factors


def _sides(matrix: Tensor) -> tuple[int, int]:
    height, width = matrix.shape
    return height, width


def linear_modules(model: TextModel) -> dict[str, nn.Module]:
    """The trained matrices of linear layers inside the Transformer's layers, by the names of their weights."""
    trained = {id(parameter): name for name, parameter in model.parameters().items()}
    also = _seen_by_others(model)
    inside = [module for layer in model.adapter.layers for module in layer.modules() if module not in also]
    held = ((module._parameters.get("weight"), module) for module in inside if _is_linear(module))
    return {trained[id(weight)]: module for weight, module in held if id(weight) in trained}


def _seen_by_others(model: TextModel) -> set[nn.Module]:
    """The modules that other things go through beside the tokens: their gradients are not the sentences' alone."""
    alone = model.adapter.family.inputs_seen_by or ATTENTION
    shared = [parts[role] for parts in model.adapter.parts for role in ATTENTION if role not in alone]
    return {module for part in shared for module in part.module.modules()}


def _is_linear(module: nn.Module) -> bool:
    """Plain linear layers, GPT-2's too; PEFT's wrappers hold theirs inside."""
    return isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"


def chosen_matrices(model: TextModel, tensors: Mapping[str, Tensor]) -> list[str]:
    """The matrices of an update that rows are made of: the highest layers' first, as far as a row has room.

    Those that did not move say nothing: LoRA's A factors while B is zero. Whether one moved is asked only where there
    is room for it, as a large update is read from the disk for that.
    """
    held = [name for name in linear_modules(model) if name in tensors]
    parameters = model.parameters()
    sizes = {name: parameters[name].numel() for name in held}
    chosen: list[str] = []
    left = LONGEST
    for name in sorted(held, key=sizes.__getitem__) if _is_lora(held) else reversed(held):
        if (sizes[name] <= left or not chosen) and bool(tensors[name].any()):
            chosen.append(name)
            left -= sizes[name]
    return [name for name in held if name in set(chosen)]


def _is_lora(names: Sequence[str]) -> bool:
    return all(".lora_" in name for name in names)
