"""Who sees whom in a decoder: windows of layers, and whether layers take masks of our own."""

from __future__ import annotations

import inspect
import re
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gradleak.models.adapter import Adapter
from gradleak.models.discovery.sketch import TOKENS, Sketch, Unclear, sketch
from gradleak.models.discovery.watch import differ, inputs_of, read
from gradleak.models.families.base import NEAR, Family
from gradleak.models.masks import Sees, given

# Shorter than what sketches read.
WINDOW = 3
_NAMES = re.compile(r"window|chunk|local")
_USUAL = ("sliding_window", "window_size")


def with_windows(family: Family, config: Any, plain: Sketch) -> Family:
    """The declaration with what its layers see; a window of the configuration is made short, to be noticed."""
    task = plain.task
    entries = [
        name for name, value in vars(config).items() if _NAMES.search(name) and (value is None or _is_size(value))
    ]
    silent = None
    for name in sorted(entries, key=lambda name: name not in _USUAL):
        if getattr(config, name) is None:
            silent = silent or (name if name in _USUAL else None)
            continue
        try:
            small = sketch(config, task, changes={name: WINDOW})
            reach = _reach(small, family)
        except (Unclear, AssertionError, RuntimeError, ValueError):  # not every number is a window
            continue
        if all(each == TOKENS for each in reach) and name not in _USUAL:
            continue
        for kinds in _kinds(small.config):
            declared = replace(family, window=name, layer_kinds=kinds)
            told = [TOKENS if each is None else each for each in Adapter(small.module, declared, task).windows]
            if told == reach:
                return _with_masks(declared, small)
        if any(each != TOKENS for each in reach):
            raise Unclear(f"what its layers see depends on {name} of config.json in a way that cannot be declared")
    if any(each != TOKENS for each in _reach(plain, family)):
        raise Unclear("some of its layers see only a part of the text, and nothing in config.json says which")
    return _with_masks(replace(family, window=silent), plain)


def _is_size(value: object) -> bool:
    return type(value) is int and value > 0


def _kinds(config: Any) -> list[str]:
    """Entries that list a kind for every layer; the usual one first, which not every configuration has."""
    lists = [
        n for n, value in vars(config).items() if isinstance(value, list | tuple) and set(NEAR) & set(map(str, value))
    ]
    return list(dict.fromkeys(("layer_types", *lists)))


def _reach(sketch: Sketch, family: Family) -> list[int]:
    """For every layer how many tokens see the first one, itself included."""
    found = []
    for parts in Adapter(sketch.module, family, sketch.task).parts:
        value, out = parts["value"].module, parts["attention_out"].module
        (still,) = inputs_of(sketch, [out])
        (moved,) = inputs_of(sketch, [out], edits={value: _first_moved})
        seen = differ(still, moved)[0].nonzero()[:, 0]
        found.append(int(seen.max()) + 1 if len(seen) else 0)
    return found


def _first_moved(output: Tensor) -> Tensor:
    changed = output.clone()
    changed[:, 0] += output.abs().mean()
    return changed


def _with_masks(family: Family, sketch: Sketch) -> Family:
    """The declaration with the buffer of a layer that holds who sees whom, where a mask alone does not say it."""
    if takes_masks(sketch, family):
        return family
    layer = Adapter(sketch.module, family, sketch.task).layers[0]
    for name, buffer in layer.named_buffers():
        if buffer.dim() >= 2 and buffer.dtype in (torch.bool, torch.uint8) and buffer.shape[-1] == buffer.shape[-2]:
            held = replace(family, window_mask=name)
            if takes_masks(sketch, held):
                return held
    raise Unclear("its layers do not take a mask that says who sees whom")


def takes_masks(sketch: Sketch, family: Family) -> bool:
    """Whether tokens that stand side by side after the same prefix are what each of them is alone."""
    adapter = Adapter(sketch.module, family, sketch.task)
    if "position_ids" not in inspect.signature(sketch.base.forward).parameters:
        return False
    prefix, tokens = sketch.ids[:, :-2], sketch.ids[0, -2:]
    length, count = prefix.shape[1], len(tokens)
    sees = torch.ones(length + count, length + count, dtype=torch.bool).tril()
    sees[length:, length:] = torch.eye(count, dtype=torch.bool)
    places = torch.arange(length + count).clamp_max(length)
    start = int(adapter.position_ids(1))
    try:
        with torch.no_grad(), given(adapter, Sees(sees, places), 1) as mask:
            ids = torch.cat([prefix, tokens[None]], dim=1)
            together = read(sketch.base, ids, attention_mask=mask, position_ids=(start + places)[None])[0]
        with torch.no_grad():
            alone = read(sketch.base, torch.cat([prefix.expand(count, -1), tokens[:, None]], dim=1))[0]
    except (RuntimeError, ValueError, TypeError, IndexError, AttributeError, KeyError):  # a mask of another form
        return False
    return not bool(differ(alone[:, -1][None], together[:, length:]).any())
