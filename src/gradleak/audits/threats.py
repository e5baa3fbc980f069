"""Named threat models: who attacks, as settings of an audit. To add one, add an entry to `THREATS`.

A name stands for settings that there are already. What is set beside it wins, and the name then says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gradleak.core.errors import GradleakError
from gradleak.core.registry import suggest


@dataclass(frozen=True)
class Threat:
    """Who attacks, and the settings of an audit that make it so."""

    who: str
    settings: Mapping[str, Any]


THREATS: dict[str, Threat] = {
    "honest-server": Threat(
        "a server that follows the protocol, sees every tensor of an update and knows the batch size",
        {"known": ("batch_size",), "observe": "all"},
    ),
    "informed-server": Threat(
        "a server that also knows the labels and the lengths of the texts, as the LAMP paper assumes",
        {"known": ("batch_size", "labels", "lengths"), "observe": "all"},
    ),
    "uninformed-server": Threat(
        "a server, or whoever listens on the way to it, that sees every tensor and is told nothing of the batch",
        {"known": (), "observe": "all"},
    ),
    "server-with-candidates": Threat(
        "a server that knows the batch size and has a list of texts, some of which may be in the batch",
        {"known": ("batch_size",), "observe": "all", "candidates": 100},
    ),
    "observer-of-layer": Threat(
        "somebody who sees the gradients of a single layer, by default of the first, and knows the batch size",
        {"known": ("batch_size",), "observe": "layer:1"},
    ),
    "observer-of-layers": Threat(
        "a server to which clients send all layers but keep embeddings and head, and which knows the batch size",
        {"known": ("batch_size",), "observe": "transformer"},
    ),
    "observer-of-head": Threat(
        "a server to which clients send the head alone, as where the rest is frozen, and which knows the batch size",
        {"known": ("batch_size",), "observe": "head"},
    ),
}

_CHANGED = " with "


def find_threat(name: str) -> Threat:
    """The threat model of that name."""
    if name not in THREATS:
        raise GradleakError(f"unknown threat model {name!r}; {suggest(name, THREATS)}")
    return THREATS[name]


def threat_label(name: str | None, settings: Mapping[str, Any]) -> str | None:
    """The name, and which of its settings are others here.

    >>> threat_label("observer-of-layer", {"known": ("batch_size",), "observe": "layer:6"})
    'observer-of-layer with observe=layer:6'
    """
    if name is None:
        return None
    changed = {key: settings[key] for key, value in find_threat(name).settings.items() if settings[key] != value}
    words = [f"{key}={','.join(value) if isinstance(value, tuple) else value}" for key, value in changed.items()]
    return name + (_CHANGED + " ".join(words) if words else "")


def threat_words(label: str) -> str:
    """A sentence about a threat model, as a result names it; another version may have known it.

    >>> threat_words("observer-of-head")[:46]
    'Threat model observer-of-head: a server to whi'
    """
    known = THREATS.get(label.partition(_CHANGED)[0])
    return f"Threat model {label}." if known is None else f"Threat model {label}: {known.who}."
