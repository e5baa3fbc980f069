"""What each linear module of a layer is, by what changes when its outputs are changed.

A change of a query is seen by its own token alone, one of a key or a value by the others too; what becomes of a value
is linear in it, what becomes of a key is not. Feed-forward matrices do not reach the attention's output. A module's
outputs are changed a few columns at a time, so that one which holds several roles shows where each of them is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any

import torch
from torch import Tensor, nn

from gradleak.models.discovery.layers import is_transposed, run_order
from gradleak.models.discovery.sketch import KEY_HEADS, Sketch, Unclear
from gradleak.models.discovery.watch import Edit, differ, inputs_of
from gradleak.models.families.base import Fused

# The token whose states are changed: others stand before and after it.
PLACE = 2
# Modules with at most so many outputs are tried output by output, others in runs that divide the width of a head.
SINGLY = 192
ATTENTION = ("query", "key", "value")


@dataclass
class Layer:
    """What was found of a layer, in the words of a declaration."""

    roles: dict[str, str | Fused]
    parallel: bool
    rotary: bool
    inputs_seen_by: tuple[str, ...]
    transposed: tuple[str, ...]


def find_roles(sketch: Sketch, layer: nn.Module, kind: str) -> Layer:
    """The roles of the first layer's modules."""
    runs = run_order(sketch, layer)
    ran = list(dict.fromkeys(call.module for call in runs))
    if not ran:
        raise Unclear("its layers hold no linear modules")
    mixed = _mixed(sketch, ran)
    out = next((module for module in ran if mixed[module]), None)
    if out is None:
        raise Unclear("no linear module of its first layer sees several tokens")
    trial = _Trial(sketch, ran, {call.module: call.made.shape[-1] for call in runs})
    entry = [
        one for one in ran if one is not out and not any(trial.reaches(two, one) for two in ran if two is not one)
    ]
    labels = {module: trial.labels(module, out) for module in entry}
    attention = {module: own for module, own in labels.items() if set(own) & set(ATTENTION)}
    _check_attention(attention, mixed)
    _tell_gates(trial, attention, out)
    feed, ffn_out = _feed_forward(trial, [module for module in ran if module is not out and module not in attention])
    places = {each: sketch.path_of(each, layer) for each in ran}
    roles = {"attention_out": places[out], "ffn_out": places[ffn_out]}
    return Layer(
        roles=_in_order(roles, {places[module]: own for module, own in (attention | feed).items()}, sketch.config),
        parallel=not mixed[next(iter(feed))],
        rotary=_turned(trial, attention, out),
        inputs_seen_by=_seen_alone(sketch, attention, runs, kind),
        transposed=tuple(sorted({type(call.module).__name__ for call in runs if is_transposed(call)})),
    )


def _in_order(single: dict[str, str], labels: dict[str, list[str]], config: Any) -> dict[str, str | Fused]:
    """All roles in the order in which they are declared, each of one place."""
    found: dict[str, str | Fused] = dict(single)
    for path, own in labels.items():
        for role, where in blocks(path, own, config).items():
            if role in found:
                raise Unclear(f"several of its matrices are {role}, {path} among them")
            found[role] = where
    usual = (*ATTENTION, "attention_out", "ffn_in", "ffn_gate", "ffn_out")
    return {role: found[role] for role in (*usual, *found) if role in found}


# --- what is where -------------------------------------------------------------------------------------


def blocks(path: str, labels: list[str], config: Any) -> dict[str, str | Fused]:
    """Where the roles of one matrix are, from the role of each of its outputs.

    >>> blocks("c_attn", ["query", "query", "key", "key", "value", "value"], None)["key"]
    Fused(path='c_attn', index=1, count=3, heights=None, groups=None)
    """
    if len(set(labels)) == 1:
        return {labels[0]: path}
    period = next(
        n for n in range(1, len(labels) + 1) if len(labels) % n == 0 and labels[:n] * (len(labels) // n) == labels
    )
    names = list(dict.fromkeys(labels[:period]))
    heights = [labels[:period].count(name) for name in names]
    if [name for name, height in zip(names, heights, strict=True) for _ in range(height)] != labels[:period]:
        raise Unclear(f"{path} holds {' and '.join(names)} in an order that cannot be declared")
    unit = gcd(*heights)
    relative = tuple(height // unit for height in heights)
    groups = len(labels) // period
    tall = None if len(set(relative)) == 1 else _named_heights(relative, config)
    within = None if groups == 1 else _named(groups, config)
    return {name: Fused(path, n, len(names), tall, within) for n, name in enumerate(names)}


def _named(count: int, config: Any) -> str | int:
    """The entry of the configuration that says how many heads there are, or the number."""
    return next((name for name in _COUNTS if getattr(config, name, None) == count), count)


_COUNTS = ("num_attention_heads", *KEY_HEADS)


def _named_heights(relative: Sequence[int], config: Any) -> tuple[str | int, ...]:
    counts = {name: value for name in _COUNTS if type(value := getattr(config, name, None)) is int and value > 0}
    for unit in sorted({value // height for value in counts.values() for height in relative if value % height == 0}):
        names = [next((n for n, value in counts.items() if value == unit * height), None) for height in relative]
        if all(names):
            return tuple(name for name in names if name is not None)
    return tuple(relative)


# --- trying it out -------------------------------------------------------------------------------------


class _Trial:
    """Passes of the sketch in which outputs of one module are changed at one token."""

    def __init__(self, sketch: Sketch, ran: list[nn.Module], widths: dict[nn.Module, int]) -> None:
        self.sketch, self.ran = sketch, ran
        self.plain = dict(zip(ran, inputs_of(sketch, ran), strict=True))
        self.widths = widths
        self._reached: dict[nn.Module, list[bool]] = {}

    def reaches(self, module: nn.Module, other: nn.Module) -> bool:
        """Whether another module of the layer sees something else when all of this one's outputs change."""
        if module not in self._reached:
            changed = inputs_of(self.sketch, self.ran, edits={module: _moved(1.0, None)})
            self._reached[module] = [
                bool(differ(self.plain[each], now).any()) for each, now in zip(self.ran, changed, strict=True)
            ]
        return self._reached[module][self.ran.index(other)]

    def changes(
        self,
        module: nn.Module,
        at: nn.Module,
        size: float,
        runs: Tensor | None,
        more: dict[nn.Module, Edit] | None = None,
    ) -> Tensor:
        """How what `at` sees moves, (runs of outputs, tokens, width), while those outputs of the module move."""
        count = 1 if runs is None else len(runs)
        ids = self.sketch.ids.expand(count, -1)
        (moved,) = inputs_of(self.sketch, [at], ids, {**(more or {}), module: _moved(size, runs)})
        (still,) = inputs_of(self.sketch, [at], self.sketch.ids, more) if more else (self.plain[at],)
        return moved - still

    def labels(self, module: nn.Module, attention_out: nn.Module) -> list[str]:
        """The role of every output of a module that sees what the layer sees: of attention, or unknown."""
        runs = self.runs_of(module)
        once, twice, back = (self.changes(module, attention_out, size, runs) for size in (1.0, 2.0, -1.0))
        scale = float(self.plain[attention_out].abs().max())
        found = []
        for number in range(len(runs)):
            moved = once[number].abs().amax(dim=-1) > 1e-5 * scale
            others = torch.cat([moved[:PLACE], moved[PLACE + 1 :]])
            if not bool(moved.any()):
                found.append("")
            elif not bool(others.any()):
                found.append("query")
            else:
                found.append("value" if _linear(once[number], twice[number], back[number]) else "key")
        return self.spread(found, module)

    def runs_of(self, module: nn.Module) -> Tensor:
        """Which outputs are changed together, (runs, outputs)."""
        width = self.widths[module]
        run = 1 if width <= SINGLY else gcd(width, max(1, _head(self.sketch.config)))
        return torch.eye(width // run, dtype=torch.float64).repeat_interleave(run, dim=1)

    def spread(self, labels: list[str], module: nn.Module) -> list[str]:
        """The labels of runs of outputs as labels of outputs."""
        each = self.widths[module] // len(labels)
        return [label for label in labels for _ in range(each)]


def _moved(size: float, runs: Tensor | None) -> Edit:
    """Adds to some outputs of one token, in every row of the batch to others."""

    def edit(output: Tensor) -> Tensor:
        generator = torch.Generator().manual_seed(1)
        direction = 1.0 + torch.rand(output.shape[-1], generator=generator, dtype=output.dtype)
        changed = output.clone()
        scale = 2.0 * output.abs().mean()
        changed[:, PLACE] += size * scale * (direction if runs is None else runs.to(output) * direction)
        return changed

    return edit


def _linear(once: Tensor, twice: Tensor, back: Tensor) -> bool:
    scale = float(once.abs().max())
    return float((twice - 2 * once).abs().max()) < 1e-3 * scale and float((once + back).abs().max()) < 1e-3 * scale


def _mixed(sketch: Sketch, ran: list[nn.Module]) -> dict[nn.Module, bool]:
    """For every module whether it sees other tokens than its own."""
    other = sketch.ids.clone()
    other[0, PLACE] = sketch.ids[0, PLACE + 1]
    plain, changed = inputs_of(sketch, ran), inputs_of(sketch, ran, other)
    moved = {module: differ(one, two)[0] for module, one, two in zip(ran, plain, changed, strict=True)}
    return {module: bool(own[:PLACE].any() or own[PLACE + 1 :].any()) for module, own in moved.items()}


def _check_attention(attention: dict[nn.Module, list[str]], mixed: dict[nn.Module, bool]) -> None:
    found = {label for labels in attention.values() for label in labels}
    lacking = [role for role in ATTENTION if role not in found]
    if lacking:
        raise Unclear(f"its first layer mixes tokens, but not by queries, keys and values: found no {lacking[0]}")
    if "" in found:
        raise Unclear("a matrix of its attention has outputs that the attention does not use")
    if any(mixed[module] for module in attention):
        raise Unclear("its attention sees tokens that something before it has mixed")


def _tell_gates(trial: _Trial, attention: dict[nn.Module, list[str]], attention_out: nn.Module) -> None:
    """Where all values are the same, queries change nothing. What still does is a gate of the attention's output."""
    alike = {module: _alike([label == "value" for label in own]) for module, own in attention.items()}
    (still,) = inputs_of(trial.sketch, [attention_out], None, alike)
    for module, own in attention.items():
        if "query" not in own:
            continue
        runs = trial.runs_of(module)
        edits = {**alike, module: _both(alike[module], _moved(1.0, runs))}
        (moved,) = inputs_of(trial.sketch, [attention_out], trial.sketch.ids.expand(len(runs), -1), edits)
        gates = ["attention_gate" if bool(differ(still, row[None]).any()) else "" for row in moved]
        attention[module] = [
            gate if label == "query" and gate else label
            for label, gate in zip(own, trial.spread(gates, module), strict=True)
        ]


def _both(first: Edit, then: Edit) -> Edit:
    return lambda output: then(first(output))


def _shifted(shift: Tensor) -> Edit:
    """Adds the same to the outputs of all tokens."""
    return lambda output: output + shift


def _alike(columns: list[bool]) -> Edit:
    """Gives some outputs the same values for all tokens."""
    chosen = torch.tensor(columns)
    return lambda output: torch.where(chosen, torch.linspace(1, 2, len(columns)).to(output), output)


def _turned(trial: _Trial, attention: dict[nn.Module, list[str]], attention_out: nn.Module) -> bool:
    """Whether something that is common to all keys matters: softmax ignores it unless positions turn keys."""
    edits: dict[nn.Module, Edit] = {}
    for module, own in attention.items():
        if "key" in own:
            keys = torch.tensor([label == "key" for label in own])
            generator = torch.Generator().manual_seed(2)
            shift = torch.randn(len(own), generator=generator, dtype=torch.float64) * keys
            edits[module] = _shifted(shift)
    (shifted,) = inputs_of(trial.sketch, [attention_out], None, edits)
    return bool(differ(trial.plain[attention_out], shifted).any())


def _feed_forward(trial: _Trial, rest: list[nn.Module]) -> tuple[dict[nn.Module, list[str]], nn.Module]:
    """The modules that the feed-forward block begins with, with the role of each output, and the one that ends it."""
    links = {(one, two) for one in rest for two in rest if one is not two and trial.reaches(one, two)}
    begin = [
        module for module in rest if not any(two is module for _, two in links) and any(o is module for o, _ in links)
    ]
    ends = [module for module in rest if any(two is module for _, two in links)]
    if not begin or not ends:
        raise Unclear("its layers have no feed-forward block of linear modules, as where tokens choose among experts")
    if len(ends) > 1:
        raise Unclear(f"its layers have {len(ends)} feed-forward blocks or more one after another")
    out = ends[0]
    found: dict[nn.Module, list[str]] = {}
    for module in begin:
        runs = trial.runs_of(module)
        once, twice, back = (trial.changes(module, out, size, runs) for size in (4.0, 8.0, -4.0))
        own = ["ffn_in" if _linear(*each) else "ffn_gate" for each in zip(once, twice, back, strict=True)]
        found[module] = trial.spread(own, module)
    kinds = {label for own in found.values() for label in own}
    if kinds == {"ffn_gate"} and len(found) == 1:  # what is not gated has its activation on all of it
        found = {module: ["ffn_in"] * len(own) for module, own in found.items()}
    elif len(found) > 2 or (len(found) == 2 and len(kinds) != 2):
        raise Unclear("its feed-forward block is none of those with one matrix, or with a gate beside it")
    return found, out


def _seen_alone(
    sketch: Sketch, attention: dict[nn.Module, list[str]], runs: Sequence[Any], kind: str
) -> tuple[str, ...]:
    """The roles that see what values see and nothing else, where these are not all of them."""
    once = len([call for call in runs if call.module in attention and "value" in attention[call.module]])
    counted = {module: len([call for call in runs if call.module is module]) for module in attention}
    seen = dict(zip(attention, inputs_of(sketch, list(attention)), strict=True))
    value = next(module for module, own in attention.items() if "value" in own)
    alone = [
        role
        for role in (ATTENTION if kind == "decoder" else ("query", "value"))
        for module, own in attention.items()
        if role in own and counted[module] == once and not bool(differ(seen[value], seen[module]).any())
    ]
    usual = list(ATTENTION if kind == "decoder" else ("query", "value"))
    return () if alone == usual else tuple(alone)


def _head(config: Any) -> int:
    own = getattr(config, "head_dim", None)
    return own if isinstance(own, int) and own else int(config.hidden_size) // int(config.num_attention_heads)
