"""Settings to compare: chains of defences, written `frozen+noise:sigma=0.001` or as a list."""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch

from gradleak.core.errors import GradleakError
from gradleak.defenses import parse_defenses
from gradleak.defenses.base import Defense, Gradient

NONE = "none"
# Settings under one name: what frameworks deploy at their own defaults, and what papers compare.
PRESETS: dict[str, tuple[str, ...]] = {
    "common": (
        "frozen", "sign", "prune:ratio=0.99", "quantize:bits=8", "percentile", "svt", "clip:norm=1.0",
        "localdp:epsilon=8", "noise:sigma=0.001", "dpsgd:noise=1.0,clip=1.0",
    ),
}  # fmt: skip

Chain = tuple[str, ...]


def parse_chain(spec: str | Sequence[str]) -> Chain:
    """The defences of one setting in the order in which they act; `none` is the empty chain, and the other way round.

    >>> parse_chain("frozen+noise:sigma=1e+3"), parse_chain("none")
    (('frozen', 'noise:sigma=1e+3'), ())
    """
    # A plus before a letter joins two defences; one before a digit belongs to a number.
    parts = re.split(r"\+(?=\s*[A-Za-z])", spec) if isinstance(spec, str) else list(spec)
    chain = tuple(part.strip() for part in parts)
    if chain in ((), (NONE,)):
        return ()
    if not all(chain):
        raise GradleakError(f"{spec!r} names no defence; write {NONE!r} for no defence")
    defenses = parse_defenses(chain)
    chain_gradient(defenses, [torch.Generator() for _ in defenses])  # refuse a wrong chain before any work
    return chain


def parse_chains(specs: Sequence[str | Sequence[str]]) -> list[Chain]:
    """Every setting once, the undefended one first: there is no cost without it. `common` stands for ten of them.

    >>> len(parse_chains(["common", "sign", "mask:ratio=0.5"]))
    12
    """
    single = [each for spec in specs for each in (PRESETS.get(spec, (spec,)) if isinstance(spec, str) else (spec,))]
    return list(dict.fromkeys([(), *map(parse_chain, single)]))


def chain_list(value: object) -> list[str | list[str]]:
    """What a configuration file lists as settings, if it has the right form."""

    def is_chain(entry: object) -> bool:
        return isinstance(entry, str) or (
            isinstance(entry, list | tuple) and all(isinstance(part, str) for part in entry)
        )

    if not isinstance(value, list | tuple) or not all(map(is_chain, value)):
        raise ValueError("must be a list; each entry a text such as 'noise:sigma=0.01' or a list of such texts")
    return list(value)


def chain_gradient(defenses: Sequence[Defense], generators: Sequence[torch.Generator]) -> Gradient | None:
    """How a chain of defences computes a local step's gradient; None for the plain way. At most one has its own.

    There is a generator for each defence.
    """
    own = [defense.gradient(generator) for defense, generator in zip(defenses, generators, strict=True)]
    ways = [(number, way) for number, way in enumerate(own) if way is not None]
    if not ways:
        return None
    number, way = ways[0]
    if len(ways) > 1 or any(type(d).apply is not Defense.apply for d in defenses[:number]):
        raise GradleakError(
            f"{defenses[ways[-1][0]].name} works on single sentences' gradients, so it comes before all that changes "
            "the update, and once"
        )
    return way


def label(chain: Chain) -> str:
    """
    >>> label(("frozen", "noise:sigma=0.001")), label(())
    ('frozen + noise:sigma=0.001', 'none')
    """
    return " + ".join(chain) or NONE


def canonical(chain: Chain) -> list[str]:
    """The chain with all values written out, the same for every way to write it.

    >>> canonical(("frozen",))
    ['frozen:parts=embeddings']
    """
    return [str(defense) for defense in parse_defenses(chain)]
