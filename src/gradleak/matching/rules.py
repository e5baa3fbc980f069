"""What each kind of layer's parameters get as gradient, from its inputs and its output gradients.

A rule is a pure function of the module, its inputs and its output gradients (those of the loss by its outputs), both
(rows, tokens, features). It gives for each parameter either factors of the gradient or, for small parameters, the
gradient itself, (rows, size). To support another layer, write its rule and name it in the `rules` of the family whose
models have it, or below if many do; the harness in tests/matching checks it against autograd.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradleak.core.registry import import_attribute
from gradleak.matching.factored import Factored, Factors, TableRows
from gradleak.matching.normalisation import is_smooth

LayerGradients = dict[str, Factored | Tensor]
Rule = Callable[[Any, Tensor, Tensor], LayerGradients]


def rule_for(module: nn.Module, further: Mapping[str, str | Rule] | None = None) -> Rule | None:
    """The rule for a module's class, or for a class it derives from; None where no rule holds.

    `further` are the rules that a family of models adds for classes of its own.
    """
    if isinstance(module, nn.Conv2d) and not _is_plain(module):
        return None
    if isinstance(module, nn.LayerNorm) and not is_smooth(module):
        return None
    rules: dict[str, str | Rule] = {**COMMON, **(further or {})}
    rule = next((rules[kind.__name__] for kind in type(module).__mro__ if kind.__name__ in rules), None)
    return cast(Rule, import_attribute(rule)) if isinstance(rule, str) else rule


def linear(module: nn.Linear, x: Tensor, output_gradient: Tensor) -> LayerGradients:
    return {"weight": Factors(output_gradient, x), "bias": output_gradient.sum(dim=1)}


def transposed_linear(module: nn.Module, x: Tensor, output_gradient: Tensor) -> LayerGradients:
    """GPT-2 stores its matrices as (inputs, outputs)."""
    return {"weight": Factors(x, output_gradient), "bias": output_gradient.sum(dim=1)}


def layer_norm(module: nn.LayerNorm, normal: Tensor, output_gradient: Tensor) -> LayerGradients:
    """Sees its normalised input: `normalise` has made it."""
    return {"weight": (output_gradient * normal).sum(dim=1), "bias": output_gradient.sum(dim=1)}


def rms_norm(module: Any, x: Tensor, output_gradient: Tensor) -> LayerGradients:
    """Also where one is added to the weight, as Gemma does, and over the numbers of each head."""
    eps = getattr(module, "variance_epsilon", None) or getattr(module, "eps", None) or torch.finfo(x.dtype).eps
    normal = x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + eps)
    return {"weight": (output_gradient * normal).sum(dim=1)}


def centred_norm(module: Any, x: Tensor, output_gradient: Tensor) -> LayerGradients:
    """A layer normalisation that is not torch's own, such as Cohere's, which has no bias."""
    eps = getattr(module, "variance_epsilon", None) or getattr(module, "eps", None) or torch.finfo(x.dtype).eps
    centred = x - x.mean(dim=-1, keepdim=True)
    normal = centred * torch.rsqrt(centred.square().mean(dim=-1, keepdim=True) + eps)
    return {"weight": (output_gradient * normal).sum(dim=1), "bias": output_gradient.sum(dim=1)}


def embedding(module: nn.Embedding, index: Tensor, output_gradient: Tensor) -> LayerGradients:
    if module.padding_idx is not None:  # such a row never learns
        output_gradient = output_gradient * (index != module.padding_idx)[..., None]
    return {"weight": TableRows(index, output_gradient, module.num_embeddings)}


def scaled_embedding(module: Any, index: Tensor, output_gradient: Tensor) -> LayerGradients:
    """Gemma's table gives a multiple of its rows."""
    return embedding(module, index, output_gradient * torch.as_tensor(module.embed_scale).to(output_gradient))


def nothing(module: nn.Module, x: Tensor, output_gradient: Tensor) -> LayerGradients:
    """For a class that computes something else than the class it derives from, whose rule would be wrong."""
    return {}


def convolution(module: nn.Conv2d, patches: Tensor, output_gradient: Tensor) -> LayerGradients:
    """A convolution is a linear layer on patches; `unfold` has made them."""
    return {"weight": Factors(output_gradient, patches), "bias": output_gradient.sum(dim=1)}


def unfold(module: nn.Conv2d, images: Tensor) -> Tensor:
    """The patches a convolution sees, (images, places, inputs · kernel)."""
    assert not isinstance(module.padding, str)
    columns = F.unfold(
        images, module.kernel_size, dilation=module.dilation, padding=module.padding, stride=module.stride
    )
    return columns.transpose(1, 2)


def _is_plain(module: nn.Conv2d) -> bool:
    """Whether a convolution is a linear layer on patches: not grouped, padded with zeros by a number."""
    return module.groups == 1 and module.padding_mode == "zeros" and not isinstance(module.padding, str)


# By the name of the module's class.
COMMON: dict[str, Rule] = {
    "Linear": linear,
    "LayerNorm": layer_norm,
    "RMSNorm": rms_norm,
    "Embedding": embedding,
    "Conv2d": convolution,
}
