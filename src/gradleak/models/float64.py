"""A copy of a model that computes in float64, and holds in float64 only what gradients are asked of.

All else is the model's own, and converted while it runs: a whole copy would take twice what the model takes.
"""

from __future__ import annotations

import copy
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradleak.models.stored import converted_while_running, weight_as_saved

if TYPE_CHECKING:
    from gradleak.models.text import TextModel


def in_float64(module: nn.Module, trained: Collection[str]) -> Any:
    """The copy; the parameters in `trained` can have gradients."""
    own: dict[int, Any] = {}
    for name, parameter in module.named_parameters():
        held = parameter.detach()
        own[id(parameter)] = nn.Parameter(held.double() if name in trained else held, requires_grad=name in trained)
    copied = copy.deepcopy(module, own)
    for part in copied.modules():
        converted_while_running(part, torch.float64)
    return copied


def rows_stand_alone(model: TextModel) -> bool:
    """Whether some rows of the token embedding can stand for all: it looks up rows, and no other layer uses them."""
    embedding = model.adapter.token_embedding
    own = embedding._parameters.get("weight")
    users = sum(p is own for part in model.module.modules() for p in part._parameters.values())
    return type(embedding).forward is nn.Embedding.forward and users == 1


def keep_rows(embedding: nn.Module, rows: Tensor) -> None:
    """Hold some rows of an embedding in float64, in this order: gradients are of these alone."""
    table = weight_as_saved(embedding).detach()
    places = torch.full((len(table),), -1, device=table.device)
    places[rows] = torch.arange(len(rows), device=table.device)
    embedding._parameters["weight"] = nn.Parameter(table[rows].double())
    embedding.__dict__.update(table=table, places=places)
    embedding.__class__ = _SomeRows


class _SomeRows(nn.Embedding):
    """An embedding of which only some rows can have a gradient."""

    table: Tensor
    places: Tensor

    def forward(self, input: Tensor) -> Tensor:
        places = self.places[input]
        kept = F.embedding(places.clamp_min(0), self.weight)
        return torch.where(places[..., None] >= 0, kept, F.embedding(input, self.table).double())
