"""What a map measures: each module of each layer, each layer whole, all layers, and all there is."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict, Field

from gradleak.models.base import Target

ALL, TRANSFORMER = "all", "transformer"
WHOLE = "whole layer"


class Place(BaseModel):
    """One cell of a map before it is measured."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    selection: str = Field(description="as `--observe` takes it")
    layer: int | None = Field(None, description="null for the whole model and for all layers")
    column: str | None = Field(None, description="the module, or the whole layer")


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


def plan(model: Target) -> list[Place]:
    """All cells in the order in which they are measured: what others are compared with comes first."""
    numbers = range(1, model.layer_count + 1)
    return [
        Place(selection=ALL),
        *(Place(selection=name) for name in (TRANSFORMER,) if name in model.sections),
        *(Place(selection=f"layer:{number}", layer=number, column=WHOLE) for number in numbers),
        *(
            Place(selection=f"layer:{number}.{','.join(roles)}", layer=number, column=column_name(roles))
            for roles in model.layer_roles
            for number in numbers
        ),
    ]
