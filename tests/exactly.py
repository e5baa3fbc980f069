"""Models that compute in fp64 throughout: the library takes norms and attention in fp32 whatever it is given."""

from __future__ import annotations

import types
from typing import Any

import torch

from gradleak import TextModel


def in_full_precision(model: TextModel) -> TextModel:
    """The model in fp64, without the library's own steps to fp32; softmax is the caller's to mend."""
    for module in model.module.double().modules():
        kind = type(module).__name__
        if kind.endswith("RMSNorm"):
            module.forward = types.MethodType(_norm, module)
        elif kind == "GPTNeoSelfAttention":
            module._attn = types.MethodType(_attend, module)
    return model


def _norm(self: Any, x: torch.Tensor) -> torch.Tensor:
    gemma = type(self).__name__.startswith("Gemma")
    eps = self.eps if gemma else self.variance_epsilon
    normal = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return normal * (1 + self.weight if gemma else self.weight)


def _attend(self: Any, query: Any, key: Any, value: Any, attention_mask: Any = None) -> tuple[Any, Any]:
    scores = query @ key.transpose(-1, -2)
    before, after = key.shape[-2] - query.shape[-2], key.shape[-2]
    scores = scores.masked_fill(~self.bias[:, :, before:after, :after], torch.finfo(scores.dtype).min)
    weights = (scores if attention_mask is None else scores + attention_mask).softmax(dim=-1)
    return weights @ value, weights
