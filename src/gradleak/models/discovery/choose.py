"""By which declaration a model is read: one's own, the listed one of its type, or one found by structure."""

from __future__ import annotations

from typing import Any

from gradleak.models.families import FAMILIES, Family, family_of

FOUND = (
    "Models of type {name} are not listed: where this one keeps its parts was found by structure; "
    "`gradleak models inspect` shows it."
)


def chosen_family(config: Any, own: Family | None = None) -> Family:
    """The declaration for the models of a configuration; one's own is checked against a small model first."""
    from gradleak.models.discovery.check import check_declaration
    from gradleak.models.discovery.discover import discover

    if own is not None:
        check_declaration(own, config)
        return own
    return family_of(config.model_type) if config.model_type in FAMILIES else discover(config)


def remark_on(family: Family, own: Family | None) -> str | None:
    """What is said of a model whose declaration nobody wrote."""
    return FOUND.format(name=family.name) if own is None and family.name not in FAMILIES else None
