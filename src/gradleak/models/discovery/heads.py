"""What stands behind the layers: the modules of a task's head, and what becomes of its logits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from gradleak.models.discovery.sketch import Sketch, Unclear
from gradleak.models.discovery.watch import calls, read, same


def find_head(sketch: Sketch, layers: list[nn.Module]) -> tuple[str, ...]:
    """Paths, from the whole model, of the modules that the logits are made by, in the order in which they run."""
    module, base = sketch.module, sketch.base
    inside = {each for layer in layers for each in layer.modules()}
    ran = calls(
        lambda: module(input_ids=sketch.ids), [m for m in module.modules() if list(m.parameters(recurse=False))]
    )
    last = max(number for number, call in enumerate(ran) if call.module in inside)
    names = {each: name for name, each in module.named_modules()}
    found: list[str] = []
    for call in ran[last + 1 :]:
        top = _without_layers(module, names[call.module], inside)
        own = module is not base and names[call.module].startswith(f"{names[base]}.")
        if own and not _has_linear(module.get_submodule(top)):  # the norm that ends the base is none of the head
            continue
        if top not in found:
            found.append(top)
    if not found or not _has_linear(module.get_submodule(found[-1])):
        raise Unclear(f"no linear module makes the logits of {sketch.task}")
    return tuple(found)


def find_logits(sketch: Sketch) -> tuple[str | None, str | float]:
    """The entries of the configuration that cap the logits of a language model, and that they are multiplied by."""
    with torch.no_grad():
        states = read(sketch.base, sketch.ids)[0]
        head = sketch.module.get_output_embeddings()
        if head is None:
            raise Unclear("it has no output layer")
        plain: Tensor = head(states)
        logits = sketch.module(input_ids=sketch.ids).logits
    if same(plain, logits):
        return _silent_cap(sketch.config), 1.0
    for name, value in _numbers(sketch.config).items():
        if same(value * torch.tanh(plain / value), logits):
            return name, 1.0
        if same(plain * value, logits):
            return None, name
    factor = float((plain * logits).sum() / plain.square().sum())
    if same(factor * plain, logits):
        return None, factor
    raise Unclear("it makes something of its logits that cannot be declared")


def _silent_cap(config: Any) -> str | None:
    """The entry for a cap that this model does not have, so that those of its family which do are read alike."""
    return next((name for name in vars(config) if "logit" in name and "cap" in name and "attn" not in name), None)


def _numbers(config: Any) -> dict[str, float]:
    """Entries about logits; another one may have the same value by chance."""
    about = {name: value for name, value in vars(config).items() if "logit" in name and type(value) in (int, float)}
    return {name: float(value) for name, value in about.items() if value > 0}


def _without_layers(module: nn.Module, path: str, inside: set[nn.Module]) -> str:
    """The largest part of a model that a module belongs to and that no layer is in."""
    names = path.split(".")
    tops = (".".join(names[: count + 1]) for count in range(len(names)))
    return next(top for top in tops if not inside & set(module.get_submodule(top).modules()))


def _has_linear(module: nn.Module) -> bool:
    weights = (getattr(each, "weight", None) for each in module.modules())
    return any(isinstance(weight, Tensor) and weight.dim() == 2 for weight in weights)
