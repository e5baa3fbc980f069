"""What a map measures: each module of each layer, each layer whole, all layers, and all there is."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict, Field

from gradleak.models.adapter import Adapter
from gradleak.models.selection import fused_with

ALL, TRANSFORMER = "all", "transformer"
WHOLE = "whole layer"


class Place(BaseModel):
    """One cell of a map before it is measured."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    selection: str = Field(description="as `--observe` takes it")
    layer: int | None = Field(None, description="null for the whole model and for all layers")
    column: str | None = Field(None, description="the module, or the whole layer")


def columns_of(adapter: Adapter) -> list[tuple[str, ...]]:
    """The single modules of a layer; roles that live in one matrix are one module."""
    parts = adapter.parts[0]
    return list(dict.fromkeys(fused_with(parts, role) for role in parts))


def column_name(roles: Sequence[str]) -> str:
    """
    >>> column_name(("attention_out",)), column_name(("query", "key", "value"))
    ('attention out', 'query + key + value')
    """
    return " + ".join(role.replace("_", " ") for role in roles)


def by_layer(places: Sequence[Place]) -> list[list[Place]]:
    """The cells of each layer together, those of no layer first: what is seen at one depth costs one pass.

    >>> [[place.selection for place in group] for group in by_layer([Place(selection="all"),
    ...     Place(selection="layer:1", layer=1), Place(selection="layer:2", layer=2),
    ...     Place(selection="layer:1.key", layer=1)])]
    [['all'], ['layer:1', 'layer:1.key'], ['layer:2']]
    """
    groups: dict[int | None, list[Place]] = {}
    for place in places:
        groups.setdefault(place.layer, []).append(place)
    return list(groups.values())


def plan(adapter: Adapter) -> list[Place]:
    """All cells in the order in which they are measured: what others are compared with comes first."""
    numbers = range(1, len(adapter.layers) + 1)
    return [
        Place(selection=ALL),
        Place(selection=TRANSFORMER),
        *(Place(selection=f"layer:{number}", layer=number, column=WHOLE) for number in numbers),
        *(
            Place(selection=f"layer:{number}.{','.join(roles)}", layer=number, column=column_name(roles))
            for roles in columns_of(adapter)
            for number in numbers
        ),
    ]
