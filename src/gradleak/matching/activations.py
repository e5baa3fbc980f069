"""Activation functions with a cheap second derivative.

A matching step differentiates twice. The library differentiates its fused activation backward as a chain of a
dozen elementary operations on the widest tensors of the model. Here the first derivative stays fused, and only the
second is written out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

# output gradient · f′(x) from the output gradient and x, and f″(x) from x.
Slope = Callable[[Tensor, Tensor], Tensor]
Bend = Callable[[Tensor], Tensor]

_DENSITY = 1 / math.sqrt(2 * math.pi)
_TANH_SCALE, _TANH_CUBE = math.sqrt(2 / math.pi), 0.044715


def _gelu_bend(x: Tensor) -> Tensor:
    squared = x * x
    density = (squared * -0.5).exp_().mul_(_DENSITY)
    return density.mul_(squared.neg_().add_(2))


def _tanh_gelu_bend(x: Tensor) -> Tensor:
    """From t = tanh(u) with u = c (x + 0.044715 x³) and the first two derivatives of u."""
    squared = x * x
    t = torch.tanh(_TANH_SCALE * x * (1 + _TANH_CUBE * squared))
    du, ddu = _TANH_SCALE * (1 + 3 * _TANH_CUBE * squared), 6 * _TANH_SCALE * _TANH_CUBE * x
    return (1 - t * t) * (du + 0.5 * x * ddu - x * t * du * du)


def _silu_bend(x: Tensor) -> Tensor:
    s = torch.sigmoid(x)
    return s * (1 - s) * (2 + x * (1 - 2 * s))


_gelu_slope: Slope = torch.ops.aten.gelu_backward
_tanh_gelu_slope: Slope = partial(torch.ops.aten.gelu_backward, approximate="tanh")
_silu_slope: Slope = torch.ops.aten.silu_backward

# By class name of the library's activation module.
DERIVATIVES: dict[str, tuple[Slope, Bend]] = {
    "GELUActivation": (_gelu_slope, _gelu_bend),
    "NewGELUActivation": (_tanh_gelu_slope, _tanh_gelu_bend),
    "SiLU": (_silu_slope, _silu_bend),
    "SiLUActivation": (_silu_slope, _silu_bend),
}


class _Slope(torch.autograd.Function):
    """Output gradient · f′(x), and its derivative."""

    @staticmethod
    def forward(ctx: Any, output_gradient: Tensor, x: Tensor, slope: Slope, bend: Bend) -> Tensor:
        ctx.save_for_backward(output_gradient, x)
        ctx.slope, ctx.bend = slope, bend
        return slope(output_gradient, x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None]:
        output_gradient, x = ctx.saved_tensors
        (grad,) = grads
        return ctx.slope(grad, x), ctx.bend(x).mul_(output_gradient).mul_(grad), None, None


class _Activation(torch.autograd.Function):
    """Takes the value f(x) as computed by the library and gives it our derivatives."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, value: Tensor, slope: Slope, bend: Bend) -> Tensor:
        ctx.save_for_backward(x)
        ctx.slope, ctx.bend = slope, bend
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        (x,) = ctx.saved_tensors
        return _Slope.apply(grads[0], x, ctx.slope, ctx.bend), None, None, None


def smooth(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor | None:
    """A forward hook: the same value with cheap derivatives, where we know them."""
    known = DERIVATIVES.get(type(module).__name__)
    if known is None or not output.requires_grad:
        return None
    return _Activation.apply(args[0], output.detach(), *known)
