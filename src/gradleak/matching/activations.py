"""Activation functions with a cheap second derivative.

A matching step differentiates twice. The library differentiates its fused activation backward as a chain of a
dozen elementary operations on the widest tensors of the model; with the derivatives written out it takes three.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

Function = Callable[[Tensor], Tensor]

_ROOT_HALF = math.sqrt(0.5)
_DENSITY = 1 / math.sqrt(2 * math.pi)
_TANH_SCALE, _TANH_CUBE = math.sqrt(2 / math.pi), 0.044715


def _gelu_slope(x: Tensor) -> Tensor:
    share = torch.erf(x * _ROOT_HALF).add_(1).mul_(0.5)
    return share.addcmul_(x, x.square().mul_(-0.5).exp_(), value=_DENSITY)


def _gelu_bend(x: Tensor) -> Tensor:
    squared = x.square()
    density = (squared * -0.5).exp_().mul_(_DENSITY)
    return density.mul_(squared.neg_().add_(2))


def _tanh_parts(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """t = tanh(u(x)) with u = c (x + 0.044715 x³), and the first two derivatives of u."""
    squared = x.square()
    t = torch.tanh(_TANH_SCALE * x * (1 + _TANH_CUBE * squared))
    return t, _TANH_SCALE * (1 + 3 * _TANH_CUBE * squared), 6 * _TANH_SCALE * _TANH_CUBE * x


def _tanh_gelu_slope(x: Tensor) -> Tensor:
    t, du, _ = _tanh_parts(x)
    return 0.5 * (1 + t) + 0.5 * x * (1 - t.square()) * du


def _tanh_gelu_bend(x: Tensor) -> Tensor:
    t, du, ddu = _tanh_parts(x)
    return (1 - t.square()) * (du + 0.5 * x * ddu - x * t * du.square())


def _silu_slope(x: Tensor) -> Tensor:
    s = torch.sigmoid(x)
    return s * (1 + x * (1 - s))


def _silu_bend(x: Tensor) -> Tensor:
    s = torch.sigmoid(x)
    return s * (1 - s) * (2 + x * (1 - 2 * s))


# By class name of the library's activation module: first and second derivative.
DERIVATIVES: dict[str, tuple[Function, Function]] = {
    "GELUActivation": (_gelu_slope, _gelu_bend),
    "NewGELUActivation": (_tanh_gelu_slope, _tanh_gelu_bend),
    "SiLU": (_silu_slope, _silu_bend),
    "SiLUActivation": (_silu_slope, _silu_bend),
}


class _Slope(torch.autograd.Function):
    """signal · f′(x), and its derivative."""

    @staticmethod
    def forward(ctx: Any, signal: Tensor, x: Tensor, slope: Tensor, bend: Function) -> Tensor:
        ctx.save_for_backward(signal, x, slope)
        ctx.bend = bend
        return signal * slope

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None]:
        signal, x, slope = ctx.saved_tensors
        (grad,) = grads
        return grad * slope, ctx.bend(x).mul_(signal).mul_(grad), None, None


class _Activation(torch.autograd.Function):
    """Takes the value f(x) as computed by the library and gives it our derivatives."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, value: Tensor, slope: Function, bend: Function) -> Tensor:
        ctx.save_for_backward(x, slope(x))
        ctx.bend = bend
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        x, slope = ctx.saved_tensors
        return _Slope.apply(grads[0], x, slope, ctx.bend), None, None, None


def smooth(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor | None:
    """A forward hook: the same value with cheap derivatives, where we know them."""
    known = DERIVATIVES.get(type(module).__name__)
    if known is None or not output.requires_grad:
        return None
    return _Activation.apply(args[0], output.detach(), *known)
