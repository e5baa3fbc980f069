"""Which rule reads the gradients of a class of modules, by comparison with autograd."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from gradleak.core.registry import import_attribute
from gradleak.models.discovery.sketch import Sketch

# Named and not imported: matching stands above models.
_PLACE = "gradleak.matching.rules"
_CAPTURE = "gradleak.matching.capture:Capture"
_TRIED = ("transposed_linear", "linear", "rms_norm", "centred_norm", "embedding", "scaled_embedding")


def find_rules(sketch: Sketch) -> tuple[dict[str, str], tuple[str, ...]]:
    """Rules for classes of modules that the common ones do not cover, and the parameters that no rule reads.

    All that the rules give is compared with autograd on the whole model. A class that computes something else than
    the class it derives from gets the rule that reads nothing.
    """
    common = import_attribute(f"{_PLACE}:rule_for")
    found: dict[str, str] = {}
    owners = [module for module in sketch.module.modules() if list(module.parameters(recurse=False))]
    for module in owners:
        name = type(module).__name__
        known = common(module)
        # Torch's own normalisation shows its rule what it has normalised.
        fits = name in found or type(module) is nn.LayerNorm or (known is not None and _holds(module, known))
        tried = () if fits else (f"{_PLACE}:{each}" for each in _TRIED)
        rule = next((each for each in tried if _holds(module, import_attribute(each))), None)
        if rule is not None:
            found[name] = rule
    read, wrong = _compared(sketch, found)
    for module in owners:
        if any(id(parameter) in wrong for parameter in module.parameters(recurse=False)):
            found[type(module).__name__] = f"{_PLACE}:nothing"
    if wrong:
        read, _ = _compared(sketch, found)
    return found, tuple(name for name, _ in sketch.module.named_parameters() if name not in read)


def _compared(sketch: Sketch, rules: dict[str, str]) -> tuple[set[str], set[int]]:
    """The parameters that are read off a pass as autograd has them, and the ids of those that are read wrongly."""
    module, rows = sketch.module, 2
    parameters = dict(module.named_parameters())
    ids = torch.cat([sketch.ids, sketch.ids.flip(1)])

    def together() -> Tensor:
        states = module.base_model(input_ids=ids, attention_mask=torch.ones_like(ids))[0]
        return (states * torch.linspace(1, 2, states.shape[-1]).to(states)).sum(dim=(1, 2))

    gradients, _ = import_attribute(_CAPTURE)(module, list(parameters), rules).gradients(
        together, rows, 1, differentiable=False
    )
    with torch.enable_grad():
        expected = torch.autograd.grad(together()[1], list(parameters.values()), allow_unused=True)
    read, wrong = set(), set()
    for (name, parameter), theirs in zip(parameters.items(), expected, strict=True):
        parts = gradients.factored.get(name, [gradients.small[name]] if name in gradients.small else [])
        if theirs is None:  # of the head, which linear modules make
            read.add(name)
        elif parts:
            ours = sum((each[1] if isinstance(each, Tensor) else each.dense()[1]) for each in parts)
            assert isinstance(ours, Tensor)
            if _close(ours.reshape(theirs.shape), theirs):
                read.add(name)
            else:
                wrong.add(id(parameter))
    return read, wrong


def _holds(module: nn.Module, rule: Any) -> bool:
    """Whether a rule gives what autograd gives for every parameter of a module, on drawn inputs."""
    generator = torch.Generator().manual_seed(3)
    weight: Any = getattr(module, "weight", None)
    if not isinstance(weight, Tensor) or weight.dim() > 2:
        return False
    names = [name for name, _ in module.named_parameters(recurse=False)]
    for width in dict.fromkeys((weight.shape[-1], weight.shape[0])):
        if isinstance(module, nn.Embedding):
            given = torch.randint(0, len(weight), (1, 6), generator=generator)
        else:
            given = torch.randn(1, 6, width, generator=generator, dtype=weight.dtype)
        try:
            made = module(given)
            pushed = torch.randn(made.shape, generator=generator, dtype=made.dtype)
            expected = torch.autograd.grad((made * pushed).sum(), [getattr(module, name) for name in names])
            gradients = rule(module, given, pushed)
            ours = [gradients[name] for name in names]
            if all(_close(_row(mine), theirs) for mine, theirs in zip(ours, expected, strict=True)):
                return True
        except Exception:
            continue
    return False


def _row(gradient: Any) -> Tensor:
    whole: Tensor = gradient if isinstance(gradient, Tensor) else gradient.dense()
    return whole[0]


def _close(mine: Tensor, theirs: Tensor) -> bool:
    """Some norms compute in single precision whatever they are given."""
    mine, theirs = mine.detach(), theirs.detach()
    if mine.shape != theirs.shape:
        return False
    return float((mine - theirs).abs().max()) <= 1e-4 * float(theirs.abs().max()) + 1e-12
