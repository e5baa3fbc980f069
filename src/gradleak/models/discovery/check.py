"""Whether a declaration of one's own is true: its parts are compared with what a small model of the kind shows."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any, NoReturn

import torch
from torch import nn

from gradleak.core.errors import GradleakError
from gradleak.models.adapter import Adapter, Part, layers_of
from gradleak.models.discovery.discover import find_kind
from gradleak.models.discovery.embeddings import find_embeddings
from gradleak.models.discovery.layers import find_layers
from gradleak.models.discovery.roles import find_roles
from gradleak.models.discovery.sketch import Sketch, Unclear, sketch, tasks_of
from gradleak.models.families.base import ROLES, Family, Fused
from gradleak.models.quiet import quiet
from gradleak.models.tasks import Task

# Roles that see the same: which of them is which decides nothing.
_ALIKE = ("ffn_in", "ffn_gate")


def check_declaration(family: Family, config: Any) -> None:
    """Refuse, in one line, a declaration that is not true of the models of a configuration.

    What the structure of such a model does not show cannot be compared, and is taken as it is declared.
    """
    _Check(family).run(config)


class _Check:
    def __init__(self, family: Family) -> None:
        self.family = family

    def run(self, config: Any) -> None:
        family = self.family
        if family.name != config.model_type:
            self._wrong(f"it is of models of type {family.name!r}, and this one is of type {config.model_type!r}")
        if family.sides:  # what each of two sides sees cannot be told from what goes in and comes out
            return
        lacking = [role for role in ROLES if role not in family.roles]
        if lacking:
            self._wrong(f"its roles lack {lacking[0]}")
        task = next((each for each in tasks_of(config) if each in family.head), None)
        if task is None:
            self._wrong("it has no head that the installed transformers has such models for")
        small = _small_model(config, task)
        if small is not None:
            self._paths(small)
            self._compare(small)

    def _paths(self, small: Sketch) -> None:
        """Every path leads to a module; some need not be there in every model of a family."""
        family, base = self.family, small.base
        tables = {"token_embedding": family.token_embedding, "positions": family.positions}
        tables |= {"token_types": family.token_types, "embedding_norm": family.embedding_norm}
        for name, path in tables.items():
            parent, _, last = (path or "").rpartition(".")
            if path is not None and not hasattr(self._module(base, name, parent), last):
                self._wrong(f"{name}: {_kind(base)} has no {path}")
        before = family.layers.partition(".*.")[0]
        if not list(self._module(base, "layers", before).children()):
            self._wrong(f"layers: there is nothing in {family.layers}")
        for layer in layers_of(base, family.layers):
            for role, where in family.roles.items():
                path = where.path if isinstance(where, Fused) else where
                module = self._module(layer, role, path)
                if not isinstance(getattr(module, "weight", None), torch.Tensor):
                    self._wrong(f"{role}: {path} is {_kind(module)}, which has no weight")
        for path in family.head_of(small.task):
            self._module(small.module, "head", path)

    def _module(self, inside: nn.Module, name: str, path: str) -> nn.Module:
        try:
            return inside.get_submodule(path)
        except AttributeError:
            self._wrong(f"{name}: {_kind(inside)} has no {path}")

    def _compare(self, small: Sketch) -> None:
        family, task = self.family, small.task
        declared = Adapter(small.module, family, task)
        kind = find_kind(small)
        if family.kind != kind:
            sees = "see" if kind == "encoder" else "do not see"
            self._wrong(f"it says {family.kind}, and tokens {sees} those after them, as those of an {kind} do")
        if declared.token_embedding is not small.base.get_input_embeddings():
            self._wrong(f"{family.token_embedding} is not the table of token embeddings")
        try:
            _, layers = find_layers(small)
            if declared.layers != layers:
                self._wrong(f"{family.layers} are not the modules that run one after another on the hidden states")
            layer = find_roles(small, layers[0], kind)
            found = replace(family, roles=layer.roles, transposed=layer.transposed)
            self._roles(declared.parts[0], Adapter(small.module, found, task).parts[0])
            if declared.parallel != layer.parallel:
                what = "the layer's input" if layer.parallel else "what the attention made of it"
                self._wrong(f"parallel: the feed-forward block sees {what}")
            embeddings = find_embeddings(small, layers[0])
        except Unclear:
            return
        for name in ("positions", "first_position"):
            mine, theirs = getattr(family, name), getattr(embeddings, name)
            there = name != "positions" or declared.positions is not None
            if there and mine != theirs:
                self._wrong(f"{name} is {mine}, and the small model of the kind reads {theirs}")

    def _roles(self, declared: dict[str, Part], found: dict[str, Part]) -> None:
        places = {role: _rows(part) for role, part in found.items()}
        for role in (each for each in declared if each in places):
            allowed = {places[other] for other in (_ALIKE if role in _ALIKE else (role,)) if other in places}
            mine = _rows(declared[role])
            if mine in allowed:
                continue
            really = next((other for other, place in places.items() if place == mine), None)
            path = declared[role].name
            if really is not None:
                self._wrong(f"{role} is said to be {path}, which computes what {really} is to be")
            self._wrong(f"{role} is said to be {path}, and it is {found[role].name} (or other rows of it)")

    def _wrong(self, what: str) -> NoReturn:
        raise GradleakError(f"the declaration of {self.family.name!r} does not fit the model: {what}")


def _small_model(config: Any, task: Task) -> Sketch | None:
    """A small model of the kind that runs; None where there cannot be one, which is no fault of a declaration."""
    for few_heads in (True, False):
        with quiet(), contextlib.suppress(Exception):
            small = sketch(config, task, few_heads)
            find_kind(small)
            return small
    return None


def _rows(part: Part) -> tuple[int, tuple[int, ...]]:
    """Which rows of which module a part is."""
    weight: Any = part.module.weight
    height = weight.shape[1 if part.transposed else 0]
    return id(part.module), tuple(part.block.of(torch.arange(height)).tolist())


def _kind(module: nn.Module) -> str:
    return f"a {type(module).__name__}"
