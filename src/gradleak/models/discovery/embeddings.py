"""What the first layer's input is made of: tables that are added up, a norm, a projection."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gradleak.models.discovery.layers import is_linear, weight_of
from gradleak.models.discovery.sketch import TOKENS, Sketch, Unclear
from gradleak.models.discovery.watch import calls, inputs_of, read, same


@dataclass
class Embeddings:
    """What stands before the layers, in the words of a declaration."""

    token_embedding: str
    positions: str | None = None
    first_position: int = 0
    first_position_id: int | None = None
    token_types: str | None = None
    embedding_norm: str | None = None
    embedding_projection: str | None = None


def find_embeddings(sketch: Sketch, first: nn.Module) -> Embeddings:
    """What stands before the first layer."""
    base = sketch.base
    table = base.get_input_embeddings()
    if not isinstance(table, nn.Embedding):
        raise Unclear("it has no table of token embeddings")
    found = Embeddings(sketch.path_of(table))
    entry = _entry(sketch, first)
    for name, module in base.named_modules():
        if isinstance(module, nn.Embedding):
            _sort_table(found, name, _rows(entry, module.weight), sketch)
    _read_modules(found, sketch, first, entry)
    _check_positions(found, sketch, first)
    embeds = table(sketch.ids).detach()
    if not same(_first_input(sketch, first), _first_input(sketch, first, inputs_embeds=embeds)):
        raise Unclear("it makes something else of embeddings than of the tokens that they are of")
    return found


def _entry(sketch: Sketch, first: nn.Module) -> Tensor:
    """The input of the first layer, with its graph."""
    seen: list[Tensor] = [call.seen for call in calls(lambda: read(sketch.base, sketch.ids), [first])]
    return seen[0]


def _first_input(sketch: Sketch, first: nn.Module, **inputs: Any) -> Tensor:
    given = inputs or {"ids": sketch.ids}
    return inputs_of(sketch, [first], run=lambda _: read(sketch.base, **given))[0]


def _rows(entry: Tensor, weight: Tensor) -> list[list[int]]:
    """For every token the rows of a table that its entry comes from."""
    rows = []
    direction = torch.linspace(1, 2, entry.shape[-1], dtype=entry.dtype)
    for place in range(TOKENS):
        (gradient,) = torch.autograd.grad(
            (entry[0, place] * direction).sum(), weight, retain_graph=True, allow_unused=True
        )
        rows.append([] if gradient is None else gradient.abs().amax(dim=1).nonzero()[:, 0].tolist())
    return rows


def _sort_table(found: Embeddings, name: str, rows: list[list[int]], sketch: Sketch) -> None:
    if not any(rows) or name == found.token_embedding:
        return
    if any(len(each) != 1 for each in rows):
        raise Unclear(f"the table {name} is read at several rows for one token")
    numbers = [each[0] for each in rows]
    if numbers == list(range(numbers[0], numbers[0] + TOKENS)):
        if found.positions is not None:
            raise Unclear(f"both {found.positions} and {name} are tables of positions")
        found.positions, found.first_position = name, numbers[0]
    elif len(set(numbers)) == 1:
        if found.token_types is not None:
            raise Unclear(f"further tables are added to the tokens': {found.token_types} and {name}")
        found.token_types = name
    else:
        raise Unclear(f"the table {name} is read by something else than tokens and positions")


def _read_modules(found: Embeddings, sketch: Sketch, first: nn.Module, entry: Tensor) -> None:
    """The norm and the projection between the tables and the first layer."""
    owners = [m for m in sketch.base.modules() if isinstance(getattr(m, "weight", None), Tensor)]
    for call in calls(lambda: read(sketch.base, sketch.ids), owners):
        module: Any = call.module
        if isinstance(module, nn.Embedding) or module in set(first.modules()):
            continue
        (used,) = torch.autograd.grad(entry.sum(), module.weight, retain_graph=True, allow_unused=True)
        if used is None:
            continue
        if module.weight.dim() == 1 and found.embedding_norm is None:
            found.embedding_norm = sketch.path_of(module)
        elif weight_of(module) is not None and is_linear(call) and found.embedding_projection is None:
            found.embedding_projection = sketch.path_of(module)
        else:
            raise Unclear(f"{sketch.path_of(module)} changes embeddings in a way that cannot be declared")


def _check_positions(found: Embeddings, sketch: Sketch, first: nn.Module) -> None:
    """Whether the entry of a token depends on where it stands only by the table, and what the model calls a place."""
    plain = _first_input(sketch, first)
    if found.positions is None:
        repeated = sketch.ids[:, :1].expand(1, TOKENS)
        states = _first_input(sketch, first, ids=repeated)
        if not same(states, states[:, :1].expand_as(states)):
            raise Unclear("it adds positions that are not in a table of parameters")
        return
    if "position_ids" not in inspect.signature(sketch.base.forward).parameters:
        raise Unclear("it cannot be told at which positions tokens stand")
    for start in dict.fromkeys((found.first_position, 0)):
        places = torch.arange(start, start + TOKENS)[None]
        if same(plain, _first_input(sketch, first, ids=sketch.ids, position_ids=places)):
            found.first_position_id = None if start == found.first_position else start
            return
    raise Unclear("it reads its table of positions in another order than it is told")
