"""Layer normalisation with a cheap second derivative.

A matching step differentiates twice. The library's fused normalisation falls apart into some thirty elementary
operations the second time; with the derivative written out it takes ten. Below n is the normalised input, r one
over its spread, and J(h) the (symmetric) derivative of n applied to h.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def is_smooth(module: nn.Module) -> bool:
    """Whether a module is a layer normalisation over its last dimension."""
    return isinstance(module, nn.LayerNorm) and len(module.normalized_shape) == 1


def normalise(x: Tensor, eps: float) -> Tensor:
    """x with mean 0 and variance 1 along its last dimension."""
    if not x.requires_grad:
        return F.layer_norm(x, x.shape[-1:], eps=eps)
    normal, _ = _Normal.apply(x, eps)
    return normal


def rescale(module: nn.LayerNorm, normal: Tensor) -> Tensor:
    """What the module makes of a normalised input."""
    if module.weight is None:
        return normal
    return normal * module.weight if module.bias is None else torch.addcmul(module.bias, normal, module.weight)


def _apply_derivative(h: Tensor, x: Tensor, mean: Tensor, r: Tensor) -> Tensor:
    """J(h)."""
    wanted = [True, False, False]
    return torch.ops.aten.native_layer_norm_backward(h, x, x.shape[-1:], mean, r, None, None, wanted)[0]


class _Normal(torch.autograd.Function):
    """n and r from x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        normal, mean, r = torch.native_layer_norm(x, x.shape[-1:], None, None, eps)
        ctx.save_for_backward(x, mean, normal, r)
        ctx.set_materialize_grads(False)
        return normal, r

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, None]:
        x, mean, normal, r = ctx.saved_tensors
        to_normal, to_r = grads
        to_x = None if to_normal is None else _Derivative.apply(to_normal, normal, r, x.detach(), mean.detach())
        if to_r is not None:
            through_r = normal * (to_r * r.square() / -x.shape[-1])
            to_x = through_r if to_x is None else to_x + through_r
        return to_x, None


class _Derivative(torch.autograd.Function):
    """J(h) as a function of h, n and r."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, normal: Tensor, r: Tensor, x: Tensor, mean: Tensor) -> Tensor:
        derivative = _apply_derivative(h, x, mean, r)
        ctx.save_for_backward(h, normal, r, x, mean, derivative)
        return derivative

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        h, normal, r, x, mean, derivative = ctx.saved_tensors
        (u,) = grads
        along_h = (h * normal).mean(dim=-1, keepdim=True)
        along_u = (u * normal).mean(dim=-1, keepdim=True)
        to_normal = (u * (along_h * -r)).addcmul_(h, along_u * -r)
        to_r = (u * derivative).sum(dim=-1, keepdim=True) / r
        return _apply_derivative(u.contiguous(), x, mean, r), to_normal, to_r, None, None
