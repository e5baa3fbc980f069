"""What is to be seen of a loaded text model: its parts, what is different, how its gradients are read."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from gradleak.core.registry import import_attribute
from gradleak.models.adapter import Adapter, Part
from gradleak.models.families import FAMILIES
from gradleak.models.text import TextModel


class Place(BaseModel):
    """One part: where it is, how large, and what of it is meant."""

    model_config = ConfigDict(frozen=True)

    path: str
    shape: tuple[int, ...]
    rows: str | None = Field(default=None, description="which rows, of a matrix with several parts")


class Inspection(BaseModel):
    """A model's parts in a form that can be printed or kept."""

    model_config = ConfigDict(frozen=True)

    model: str
    family: str
    declared: str = Field(description="listed, found or own: who says where the parts are")
    kind: str
    task: str
    tasks: tuple[str, ...]
    layers: int
    width: int
    vocabulary: int
    longest: int = Field(description="tokens of the longest text")
    parameters: int
    parts: dict[str, Place] = Field(description="embeddings and head from the whole model")
    roles: dict[str, Place] = Field(description="matrices of the first layer")
    differences: tuple[str, ...] = Field(description="what is different from a plain Transformer")
    rules: dict[str, str] = Field(description="how gradients of each class of modules are read when matching")
    tied: tuple[tuple[str, ...], ...] = Field(description="names of one and the same matrix")
    adapters: str | None
    notes: tuple[str, ...]
    attacks: dict[str, str] = Field(default={}, description="what each attack lacks; empty: nothing")


def inspected(model: TextModel, own: bool = False) -> Inspection:
    """What is to be seen of a model; `own` says that its user gave the declaration."""
    adapter, module = model.adapter, model.module
    listed = "listed" if model.family in FAMILIES else "found"
    return Inspection(
        model=model.name,
        family=model.family,
        declared="own" if own else listed,
        kind=adapter.family.kind,
        task=model.task,
        tasks=adapter.family.tasks,
        layers=adapter.depth,
        width=_matrix(adapter, adapter.parts[0]["query"]).shape[1],
        vocabulary=model.vocabulary_size,
        longest=model.max_length,
        parameters=sum(parameter.numel() for parameter in module.parameters()),
        parts=_parts(adapter),
        roles={role: _place(adapter, part) for role, part in adapter.parts[0].items()},
        differences=tuple(_differences(adapter)),
        rules=_rules(model),
        tied=_tied(module),
        adapters=model.adapters,
        notes=model.notes,
    )


def _matrix(adapter: Adapter, part: Part) -> Tensor:
    """The part's own matrix, (outputs, inputs), under adapters too."""
    module: Any = getattr(part.module, "base_layer", part.module)
    turned = type(module).__name__ in adapter.family.transposed
    return replace(part, transposed=turned).of(module.weight)


def _place(adapter: Adapter, part: Part) -> Place:
    block, matrix = part.block, _matrix(adapter, part)
    height = len(matrix)
    several = "" if block.groups == 1 else f" in each of {block.groups} groups"
    rows = None if block.whole else f"block {block.index + 1} of {len(block.heights)}{several}, {height} rows"
    return Place(path=part.name, shape=tuple(matrix.shape), rows=rows)


def _parts(adapter: Adapter) -> dict[str, Place]:
    tables = {
        "token embedding": adapter.token_embedding,
        "positions": adapter.positions,
        "token types": adapter.token_types,
        "embedding norm": adapter.embedding_norm,
        "embedding projection": adapter.embedding_projection,
        **{f"head {number}": part for number, part in enumerate(adapter.head, start=1)},
    }
    found = {}
    for name, module in tables.items():
        if module is not None:
            weights = [each for each in module.parameters() if each.dim() == 2] or list(module.parameters())
            found[name] = Place(path=adapter.name_of(module), shape=tuple(weights[-1].shape) if weights else ())
    return found


def _differences(adapter: Adapter) -> list[str]:
    family = adapter.family
    fused: dict[str, list[str]] = defaultdict(list)
    for role, part in adapter.parts[0].items():
        if not part.block.whole:
            fused[part.name].append(role)
    said = [f"{name} holds {', '.join(roles)} in one matrix" for name, roles in fused.items()]
    if "ffn_gate" in family.roles:
        said.append("the feed-forward block is gated")
    if adapter.parallel:
        said.append("the feed-forward block runs beside the attention, on the same input")
    if family.rotary:
        said.append("queries and keys depend on where their tokens stand (rotary, or relative positions)")
    elif adapter.positions is None:
        said.append("there is no table of positions")
    if family.first_position:
        said.append(f"the first token reads row {family.first_position} of the table of positions")
    windows = Counter(window for window in adapter.windows if window is not None)
    said += [f"{count} of {len(adapter.layers)} layers see {window} tokens back" for window, count in windows.items()]
    if adapter.shared:
        said.append(f"{len(adapter.layers)} layers run {adapter.depth} times in all")
    if adapter.logit_cap is not None:
        said.append(f"logits stay below {adapter.logit_cap:g}")
    if adapter.logit_scale != 1.0:
        said.append(f"logits are multiplied by {adapter.logit_scale:g}")
    if family.inputs_seen_by:
        said.append(f"of the attention's matrices only {', '.join(family.inputs_seen_by)} see nothing but its input")
    if family.transposed:
        said.append(f"matrices of class {', '.join(family.transposed)} store (inputs, outputs)")
    return said


def _rules(model: TextModel) -> dict[str, str]:
    """For every class of modules with parameters of its own the rule of the fast engine, or plain autograd."""
    rule_for = import_attribute("gradleak.matching.rules:rule_for")
    found: dict[str, str] = {}
    for module in model.module.modules():
        if list(module.parameters(recurse=False)):
            rule = rule_for(module, model.adapter.family.rules)
            read = rule is not None and rule.__name__ != "nothing"
            found.setdefault(type(module).__name__, rule.__name__ if read else "plain autograd")
    return dict(sorted(found.items()))


def _tied(module: nn.Module) -> tuple[tuple[str, ...], ...]:
    names: dict[int, list[str]] = defaultdict(list)
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names[id(parameter)].append(name)
    return tuple(tuple(each) for each in names.values() if len(each) > 1)
