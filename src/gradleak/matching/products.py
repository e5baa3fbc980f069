"""Inner products and squares of gradients in factors, with their derivatives written out.

Matrices with the same input (query, key, value) are handled together: what depends on the input alone is computed
once, and their thin targets are multiplied in one go.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gradleak.matching.factored import Factors
from gradleak.matching.targets import Group, Target, multiply


def products(
    gradients: Sequence[Factors], targets: Sequence[Target], groups: Sequence[Group]
) -> tuple[Tensor, Tensor]:
    """⟨gradient, target⟩ and ‖gradient‖² of several matrices, each (matrices, R).

    The gradients must share their right factor, and their targets must be all thin or all dense.
    """
    function = _Dense if targets[0].thin is None else _Thin
    return function.apply(targets, groups, gradients[0].right, *[gradient.left for gradient in gradients])


class _Thin(torch.autograd.Function):
    """With targets P Qᵀ the inner product is Σ (left P) ∘ (right Q)."""

    @staticmethod
    def forward(
        ctx: Any, targets: Sequence[Target], groups: Sequence[Group], right: Tensor, *lefts: Tensor
    ) -> tuple[Tensor, Tensor]:
        pairs = [target.thin for target in targets if target.thin is not None]
        joined = torch.cat([q for _, q in pairs], dim=2) if len(pairs) > 1 else pairs[0][1]
        right_pulled = multiply(right, joined, groups).split([q.shape[2] for _, q in pairs], dim=2)
        left_pulled = [multiply(left, p, groups) for left, (p, _) in zip(lefts, pairs, strict=True)]
        inners = [(a * b).sum(dim=(1, 2)) for a, b in zip(left_pulled, right_pulled, strict=True)]
        right_gram = right @ right.transpose(1, 2)
        left_grams = torch.stack([left @ left.transpose(1, 2) for left in lefts])
        if any(ctx.needs_input_grad):
            ctx.pairs, ctx.joined, ctx.groups, ctx.count = pairs, joined, groups, len(lefts)
            ctx.save_for_backward(right, right_gram, left_grams, *lefts, *left_pulled, *right_pulled)
        return torch.stack(inners), (left_grams * right_gram).sum(dim=(2, 3))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        right, right_gram, left_grams, *rest = ctx.saved_tensors
        lefts, left_pulled, right_pulled = (rest[i * ctx.count : (i + 1) * ctx.count] for i in range(3))
        by_inner, by_square = grads[0][..., None, None], 2 * grads[1][..., None, None]
        to_lefts = [
            multiply(a * pulled, p.transpose(1, 2), ctx.groups).baddbmm_(b * right_gram, left)
            for a, b, pulled, (p, _), left in zip(by_inner, by_square, right_pulled, ctx.pairs, lefts, strict=True)
        ]
        pulled = [a * pulled for a, pulled in zip(by_inner, left_pulled, strict=True)]
        spread = multiply(torch.cat(pulled, dim=2), ctx.joined.transpose(1, 2), ctx.groups)
        to_right = spread.baddbmm_((by_square * left_grams).sum(dim=0), right)
        return None, None, to_right, *to_lefts


class _Dense(torch.autograd.Function):
    """With a target G the inner product is Σ (left G) ∘ right."""

    @staticmethod
    def forward(
        ctx: Any, targets: Sequence[Target], groups: Sequence[Group], right: Tensor, *lefts: Tensor
    ) -> tuple[Tensor, Tensor]:
        pulled = [multiply(left, target.tensors, groups) for left, target in zip(lefts, targets, strict=True)]
        inners = [(p * right).sum(dim=(1, 2)) for p in pulled]
        right_gram = right @ right.transpose(1, 2)
        left_grams = torch.stack([left @ left.transpose(1, 2) for left in lefts])
        if any(ctx.needs_input_grad):
            ctx.targets, ctx.groups, ctx.count = targets, groups, len(lefts)
            ctx.save_for_backward(right, right_gram, left_grams, *lefts, *pulled)
        return torch.stack(inners), (left_grams * right_gram).sum(dim=(2, 3))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        right, right_gram, left_grams, *rest = ctx.saved_tensors
        lefts, pulled = rest[: ctx.count], rest[ctx.count :]
        by_inner, by_square = grads[0][..., None, None], 2 * grads[1][..., None, None]
        to_lefts = [
            multiply(a * right, [t.T for t in target.tensors], ctx.groups).baddbmm_(b * right_gram, left)
            for a, b, target, left in zip(by_inner, by_square, ctx.targets, lefts, strict=True)
        ]
        to_right = (by_square * left_grams).sum(dim=0) @ right
        for a, p in zip(by_inner, pulled, strict=True):
            to_right.addcmul_(a, p)
        return None, None, to_right, *to_lefts
