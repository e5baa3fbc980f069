"""What a client can do to its update before it leaves."""

from __future__ import annotations

from collections.abc import Sequence

from gradleak.core.parameters import split_parameters, validated
from gradleak.core.registry import Registry
from gradleak.defenses.base import Defense

DEFENSES: Registry[type[Defense]] = Registry(
    "defence",
    {
        "dpsgd": "gradleak.defenses.dpsgd:DpSgd",
        "frozen": "gradleak.defenses.frozen:Frozen",
        "layers": "gradleak.defenses.layers:SomeLayers",
        "mask": "gradleak.defenses.sparse:Masking",
        "noise": "gradleak.defenses.noise:GaussianNoise",
        "prune": "gradleak.defenses.sparse:Pruning",
        "quantize": "gradleak.defenses.coarse:Quantization",
        "sign": "gradleak.defenses.coarse:SignCompression",
    },
    base=Defense,
    group="gradleak.defenses",
)


def parse_defenses(specs: Sequence[str]) -> list[Defense]:
    """The defences of texts such as `noise:sigma=0.01`, in the order in which they act.

    >>> parse_defenses(["noise:sigma=0.01"])
    [GaussianNoise(sigma=0.01)]
    """
    found = []
    for spec in specs:
        name, values = split_parameters(spec)
        found.append(validated(DEFENSES.get(name), values, f"defence {name!r}"))
    return found
