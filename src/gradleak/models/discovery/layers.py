"""Which modules of a model are its layers: alike, in a list, and run one after another on hidden states."""

from __future__ import annotations

import itertools
from typing import Any

from torch import Tensor, nn

from gradleak.models.discovery.sketch import Sketch, Unclear
from gradleak.models.discovery.watch import Call, calls, read, same


def find_layers(sketch: Sketch) -> tuple[str, list[nn.Module]]:
    """The path of the layers from the base, with a star for every module of a list, and the layers themselves."""
    lists = {
        name: each for name, each in sketch.base.named_modules() if isinstance(each, nn.ModuleList) and len(each)
    }
    ran = calls(lambda: read(sketch.base, sketch.ids), [child for each in lists.values() for child in each])
    chains = {name: each for name, each in lists.items() if _is_chain([c for c in ran if c.module in set(each)])}
    if not chains:
        raise Unclear("no list of modules runs one after another on the hidden states")
    outer = max(chains, key=lambda name: (_size(chains[name]), -name.count(".")))
    path, layers = outer, list(chains[outer])
    while inner := _only_list(layers):
        path = f"{path}.*.{inner}"
        layers = [layer for group in layers for layer in group.get_submodule(inner).children()]
    if any(shape_of(layer) != shape_of(layers[0]) for layer in layers):
        raise Unclear("its layers are not alike")
    return path, layers


def shape_of(layer: nn.Module) -> list[tuple[str, str]]:
    """What a layer consists of: the names and classes of its matrices. Some first layers lack a norm."""
    matrices = ((name, module) for name, module in layer.named_modules() if weight_of(module) is not None)
    return [(name, type(module).__name__) for name, module in matrices]


def run_order(sketch: Sketch, layer: nn.Module) -> list[Call]:
    """The runs of a layer's linear modules, in order; those of the first run of the layer come first."""
    linear = [module for module in layer.modules() if weight_of(module) is not None]
    ran = calls(lambda: read(sketch.base, sketch.ids), linear)
    return [call for call in ran if is_linear(call)]


def weight_of(module: nn.Module) -> Tensor | None:
    """The matrix of a module that may be linear; tables are not."""
    weight: Any = getattr(module, "weight", None)
    tables = isinstance(module, nn.Embedding)
    return weight if isinstance(weight, Tensor) and weight.dim() == 2 and not tables else None


def is_linear(call: Call) -> bool:
    return _fits(call, transposed=False) or _fits(call, transposed=True)


def is_transposed(call: Call) -> bool:
    """Whether a linear module stores (inputs, outputs)."""
    return not _fits(call, transposed=False)


def _fits(call: Call, transposed: bool) -> bool:
    weight = weight_of(call.module)
    assert weight is not None
    matrix = weight.detach() if transposed else weight.detach().T
    if call.seen.shape[-1] != matrix.shape[0] or call.made.shape[-1] != matrix.shape[1]:
        return False
    bias: Any = getattr(call.module, "bias", None)
    made = call.seen.detach() @ matrix + (0.0 if bias is None else bias.detach())
    return same(made.reshape(1, -1, made.shape[-1]), call.made.detach().reshape(1, -1, made.shape[-1]))


def _is_chain(ran: list[Call]) -> bool:
    """Whether each run goes on with what the one before it made."""
    if not ran or any(call.seen.dim() != 3 or call.seen.shape != call.made.shape for call in ran):
        return False
    return all(same(before.made.detach(), after.seen.detach()) for before, after in itertools.pairwise(ran))


def _only_list(layers: list[nn.Module]) -> str | None:
    """The name of the list that is all there is in each of the modules."""
    names = set()
    for layer in layers:
        parts = [(name, child) for name, child in layer.named_children() if any(True for _ in child.parameters())]
        if len(parts) != 1 or not isinstance(parts[0][1], nn.ModuleList):
            return None
        names.add(parts[0][0])
    return names.pop() if len(names) == 1 else None


def _size(modules: nn.ModuleList) -> int:
    return sum(parameter.numel() for parameter in modules.parameters())
