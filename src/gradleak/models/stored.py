"""Frozen weights that stay as they were saved, in bf16 or fp16, and are computed with in fp32.

A module whose weight is kept so gives it in fp32 whenever it is asked for it: every number of bf16 and fp16 is one of
fp32 too, so what is computed is the same to the last bit, and only half the memory is taken. What is trained is fp32.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

HALF = (torch.bfloat16, torch.float16)


def stand_ins(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[int, Tensor]]:
    """The tensors for a library that would convert them to fp32: in the place of halves something without memory.

    The second table has what really belongs there, by the address of what stands in for it.
    """
    given, stored = {}, {}
    for name, tensor in tensors.items():
        if tensor.dtype in HALF:
            given[name] = torch.zeros(1).expand(tensor.shape)
            stored[given[name].data_ptr()] = tensor
        else:
            given[name] = tensor
    return given, stored


def put_back(module: nn.Module, stored: Mapping[int, Tensor]) -> None:
    """Put the saved weights where the stand-ins are, frozen. A tied weight stays one."""
    made: dict[int, nn.Parameter] = {}
    for part in module.modules():
        names = []
        for name, parameter in part._parameters.items():
            if parameter is None or parameter.data_ptr() not in stored:
                continue
            own = stored[parameter.data_ptr()]
            part._parameters[name] = made.setdefault(id(own), nn.Parameter(own, requires_grad=False))
            names.append(name)
        if names:
            part.__class__ = _kept(type(part), tuple(names))  # type: ignore[arg-type]


def trained_in_fp32(module: nn.Module) -> nn.Module:
    """The module with everything in fp32 but what is frozen and stays as it was saved."""
    for part in module.modules():
        for parameter in part._parameters.values():
            if parameter is not None and not (isinstance(part, Kept) and not parameter.requires_grad):
                parameter.data = parameter.data.float()
        for name, buffer in part._buffers.items():
            if buffer is not None and buffer.is_floating_point():
                part._buffers[name] = buffer.float()
    return module


def weight_as_saved(module: nn.Module) -> Tensor:
    """The weight that a module holds, without computing anything."""
    weight: Any = module._parameters.get("weight")
    if weight is None:  # a wrapper of peft, which gives that of the module inside
        weight = module.weight
    assert isinstance(weight, Tensor)
    return weight


def computing_in(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """The module with all of its weights in a type."""
    for part in module.modules():
        if isinstance(part, Kept):
            part.__class__ = type(part).__bases__[1]
    return module.to(dtype)


class Kept:
    """Marks the classes of modules whose weights are kept as they were saved."""


@functools.cache
def _kept(kind: type[nn.Module], names: tuple[str, ...]) -> type[nn.Module]:
    """The class under the same name, with its weights in fp32 whenever they are asked for."""

    def in_fp32(name: str) -> property:
        return property(lambda self: self._parameters[name].float())

    members: dict[str, Any] = {name: in_fp32(name) for name in names}
    if kind.forward is nn.Linear.forward:
        members["forward"] = _linear
    elif kind.forward is nn.Embedding.forward:
        members["forward"] = _embedding
    return type(kind.__name__, (Kept, kind), {"__module__": kind.__module__, **members})


def _embedding(self: nn.Embedding, ids: Tensor) -> Tensor:
    """Rows are looked up first and converted then; the whole table would take more memory than all the rest."""
    return F.embedding(ids, weight_as_saved(self)).float()


def _linear(self: nn.Linear, states: Tensor) -> Tensor:
    if any(parameter.requires_grad for parameter in self.parameters(recurse=False)):
        return F.linear(states, self.weight, self.bias)
    result: Tensor = _FrozenLinear.apply(states, weight_as_saved(self), self.bias)
    return result


class _FrozenLinear(torch.autograd.Function):
    """Keeps the saved weight for the backward pass, where autograd would keep one in fp32."""

    generate_vmap_rule = True

    @staticmethod
    def forward(states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.linear(states, weight.to(states.dtype), bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (weight,) = ctx.saved_tensors
        return gradient @ weight.to(gradient.dtype), None, None
