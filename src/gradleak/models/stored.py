"""Frozen weights that stay as they were saved, in bf16, fp16 or four bits, and are computed with in fp32.

A module whose weight is kept so gives it in fp32 whenever it is asked for it: every number of bf16 and fp16 is one of
fp32 too, so what is computed is the same to the last bit, and only half the memory is taken. What is trained is fp32.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradleak.core.errors import GradleakError
from gradleak.models.four_bit import FourBit

HALF = (torch.bfloat16, torch.float16)
# Numbers of a frozen matrix that are in fp32 at a time: 128 MB. Output layers of large vocabularies have more.
PIECE = 1 << 25


def stand_ins(
    tensors: Mapping[str, Tensor | FourBit],
) -> tuple[dict[str, Tensor], dict[int, Tensor | FourBit]]:
    """The tensors for a library that would convert them to fp32: in their place something without memory.

    The second table has what really belongs there, by the address of what stands in for it.
    """
    given: dict[str, Tensor] = {}
    stored: dict[int, Tensor | FourBit] = {}
    for name, tensor in tensors.items():
        if isinstance(tensor, FourBit) or tensor.dtype in HALF:
            given[name] = torch.zeros(1).expand(tensor.shape)
            stored[given[name].data_ptr()] = tensor
        else:
            given[name] = tensor
    return given, stored


def put_back(module: nn.Module, stored: Mapping[int, Tensor | FourBit]) -> None:
    """Put the saved weights where the stand-ins are, frozen. A tied weight stays one."""
    made: dict[int, nn.Parameter] = {}
    for part in module.modules():
        names = []
        for name, parameter in part._parameters.items():
            if parameter is None or parameter.data_ptr() not in stored:
                continue
            own = stored[parameter.data_ptr()]
            if isinstance(own, FourBit):
                _pack(part, name, own)
                continue
            part._parameters[name] = made.setdefault(id(own), nn.Parameter(own, requires_grad=False))
            names.append(name)
        if names:
            part.__class__ = _kept(type(part), tuple(names), torch.float32)  # type: ignore[arg-type]


def _pack(part: nn.Module, name: str, own: FourBit) -> None:
    if not isinstance(part, nn.Linear) or name != "weight":
        raise GradleakError(
            f"a {name} of {type(part).__name__} is in 4 bits; only those of linear layers can be read"
        )
    part._parameters[name] = nn.Parameter(own.packed, requires_grad=False)
    part.register_buffer("largest", own.largest, persistent=False)  # beside the weight on whatever device that is
    part.register_buffer("code", own.code, persistent=False)
    part.packing = (own.block, own.dtype, own.shape)  # type: ignore[assignment]
    part.__class__ = _kept(type(part), ("weight",), torch.float32)  # type: ignore[arg-type, assignment]


def packed_weight(part: Any) -> FourBit:
    """The weight of a module that is kept in four bits."""
    return FourBit(part._parameters["weight"], part.largest, part.code, *part.packing)


def readable(module: nn.Module) -> dict[str, Tensor | FourBit]:
    """All weights by name, a tied one once, each in a form whose numbers can be read."""
    weights: dict[str, Tensor | FourBit] = dict(module.named_parameters())
    for name, part in module.named_modules():
        if f"{name}.weight" in weights and hasattr(part, "packing"):
            weights[f"{name}.weight"] = packed_weight(part)
    return weights


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
    if "table" in module.__dict__:  # some of its rows alone are held apart
        weight = module.__dict__["table"]
    if weight is None:  # a wrapper of peft, which gives that of the module inside
        weight = module.weight
    assert isinstance(weight, Tensor)
    return weight


def computing_in(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """The module with all of its weights in a type."""
    for part in module.modules():
        if isinstance(part, Kept):
            if hasattr(part, "packing"):
                part._parameters["weight"] = nn.Parameter(packed_weight(part).unpacked(), requires_grad=False)
                del part.packing
            part.__class__ = type(part).__bases__[1]
    return module.to(dtype)


def converted_while_running(part: nn.Module, dtype: torch.dtype) -> None:
    """Let a module compute in a type in which it holds only what is trained of its own weights."""
    frozen = [name for name, p in part._parameters.items() if p is not None and not p.requires_grad]
    if frozen:
        kind = type(part).__bases__[1] if isinstance(part, Kept) else type(part)
        part.__class__ = _kept(kind, tuple(frozen), dtype)
    for name, buffer in part._buffers.items():
        if buffer is not None and buffer.is_floating_point():
            part._buffers[name] = buffer.to(dtype)


class Kept:
    """Marks the classes of modules whose weights are kept as they were saved."""


@functools.cache
def _kept(kind: type[nn.Module], names: tuple[str, ...], dtype: torch.dtype) -> type[nn.Module]:
    """The class under the same name, with these weights in a type whenever they are asked for."""

    def converted(name: str) -> property:
        def weight(self: Any) -> Tensor:
            raw: Tensor = self._parameters[name]
            return (packed_weight(self).unpacked() if raw.dtype == torch.uint8 else raw).to(dtype)

        return property(weight)

    def embedding(self: nn.Embedding, ids: Tensor) -> Tensor:
        """Rows are looked up first and converted then; the whole table would take more memory than all the rest."""
        return F.embedding(ids, weight_as_saved(self)).to(dtype)

    members: dict[str, Any] = {name: converted(name) for name in names}
    if kind.forward is nn.Linear.forward:
        members["forward"] = _linear
    elif kind.forward is nn.Embedding.forward:
        members["forward"] = embedding
    return type(kind.__name__, (Kept, kind), {"__module__": kind.__module__, **members})


def _linear(self: nn.Linear, states: Tensor) -> Tensor:
    if any(parameter.requires_grad for parameter in self.parameters(recurse=False)):
        return F.linear(states, self.weight, self.bias)
    result: Tensor = _FrozenLinear.apply(states, self)
    return result


def _pieces(module: nn.Linear, dtype: torch.dtype) -> Iterator[tuple[slice, Tensor]]:
    """The weight in a type: in pieces of rows where all of it, as of an output layer, would be too much at once.

    A piece holds until the next is asked for.
    """
    saved = weight_as_saved(module)
    rows = PIECE // module.in_features
    if saved.dtype == torch.uint8:
        yield slice(None), module.weight.to(dtype)
        return
    for first in range(0, len(saved), rows):
        piece = slice(first, first + rows) if len(saved) > rows else slice(None)
        yield piece, _converted(saved[piece], dtype)


_ROOMS = threading.local()


def _converted(saved: Tensor, dtype: torch.dtype) -> Tensor:
    """A matrix in a type, until the next is asked for: all are put into the same room.

    Room that is taken and given back for each leaves holes between activations, which stay for the backward pass. In
    sum the holes were as large as all matrices together.
    """
    if torch.is_grad_enabled():  # a further derivative will be taken, for which it is kept
        return saved.to(dtype)
    rooms: dict[tuple[torch.dtype, torch.device], Tensor] = _ROOMS.__dict__.setdefault("rooms", {})
    room = rooms.get((dtype, saved.device))
    if room is None or room.numel() < saved.numel():
        room = rooms[dtype, saved.device] = torch.empty(saved.numel(), dtype=dtype, device=saved.device)
    return room[: saved.numel()].view(saved.shape).copy_(saved)


class _FrozenLinear(torch.autograd.Function):
    """Keeps the saved weight for the backward pass, where autograd would keep one in fp32."""

    generate_vmap_rule = True

    @staticmethod
    def forward(states: Tensor, module: nn.Linear) -> Tensor:
        bias = module.bias
        made = [
            F.linear(states, weight, None if bias is None else bias[rows])
            for rows, weight in _pieces(module, states.dtype)
        ]
        return made[0] if len(made) == 1 else torch.cat(made, dim=-1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, nn.Linear], output: Tensor) -> None:
        ctx.module = inputs[1]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        made = [gradient[..., rows] @ weight for rows, weight in _pieces(ctx.module, gradient.dtype)]
        return made[0] if len(made) == 1 else torch.stack(made).sum(dim=0), None
