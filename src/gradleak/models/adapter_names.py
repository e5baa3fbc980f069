"""The names of adapters' weights: peft saves them without the adapter's name, other tools with it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

# Wrappers put one name each before a parameter's; more than a few are not wrappers.
MOST_PREFIXES = 4
FACTOR = re.compile(r"\.(lora_(?:embedding_)?[AB]|lora_magnitude_vector)(\.[^.]+)??(\.weight)?$")
NAMED = re.compile(r"(\.lora_(?:embedding_)?[AB]|\.lora_magnitude_vector|\.modules_to_save)\.[^.]+((?:\.|$))")
# What peft calls an adapter that nobody named; all that are loaded here are called so.
ADAPTER = "default"
SAVED = re.compile(r"\.modules_to_save\.[^.]+\.")


def plain_name(name: str) -> str:
    """The name without the adapter's, the same however a tool spells it.

    >>> plain_name("q_proj.lora_A.default.weight"), plain_name("q_proj.lora_A.weight")
    ('q_proj.lora_A', 'q_proj.lora_A')
    >>> plain_name("q_proj.lora_magnitude_vector"), plain_name("score.modules_to_save.mine.dense.bias")
    ('q_proj.lora_magnitude_vector', 'score.dense.bias')
    """
    return SAVED.sub(".", FACTOR.sub(r".\1", name))


def loaded_name(name: str) -> str:
    """The name that a parameter of a model has once its adapters are loaded, whatever they were called in training.

    >>> loaded_name("q_proj.lora_A.mine.weight"), loaded_name("score.modules_to_save.mine.bias")
    ('q_proj.lora_A.default.weight', 'score.modules_to_save.default.bias')
    """
    return NAMED.sub(rf"\1.{ADAPTER}\2", name)


def by_plain_name(names: Iterable[str]) -> dict[str, str]:
    """A model's names by their plain ones; of two adapters in one model the first is meant."""
    table: dict[str, str] = {}
    for name in names:
        table.setdefault(plain_name(name), name)
    return table


def spellings(name: str) -> Iterator[str]:
    """The plain names that a tensor's name may stand for: as it is, then without what wrappers put before it."""
    for prefixes in range(MOST_PREFIXES + 1):
        rest = name.split(".", prefixes)[-1]
        yield plain_name(f".{rest}")[1:]
        yield rest.replace(".modules_to_save.", ".")
