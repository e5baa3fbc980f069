"""What a client can do to its update before it leaves."""

from __future__ import annotations

from collections.abc import Sequence

from gradleak.core.errors import GradleakError
from gradleak.core.parameters import split_parameters, validated
from gradleak.core.registry import Registry
from gradleak.defenses.base import Defense

DEFENSES: Registry[type[Defense]] = Registry(
    "defence",
    {
        "adaptiveclip": "gradleak.defenses.adaptive_clip:AdaptiveClipping",
        "clip": "gradleak.defenses.localdp:WholeClipping",
        "dpsgd": "gradleak.defenses.dpsgd:DpSgd",
        "frozen": "gradleak.defenses.frozen:Frozen",
        "layers": "gradleak.defenses.layers:SomeLayers",
        "localdp": "gradleak.defenses.localdp:LocalDp",
        "mask": "gradleak.defenses.mask:Masking",
        "noise": "gradleak.defenses.noise:GaussianNoise",
        "percentile": "gradleak.defenses.percentile:PercentilePrivacy",
        "prune": "gradleak.defenses.prune:Pruning",
        "quantize": "gradleak.defenses.quantize:Quantization",
        "sign": "gradleak.defenses.sign:SignCompression",
        "svt": "gradleak.defenses.svt:SvtPrivacy",
        "tree": "gradleak.defenses.tree:TreeNoise",
        "wire": "gradleak.defenses.wire:WireFormat",
    },
    base=Defense,
    group="gradleak.defenses",
)


def parse_defenses(specs: Sequence[str]) -> list[Defense]:
    """The defences of texts such as `noise:sigma=0.01`, in the order in which they act.

    >>> parse_defenses(["noise:sigma=0.01"])
    [GaussianNoise(sigma=0.01)]
    """
    return [_parsed(spec) for spec in specs]


def known_defenses(specs: Sequence[str]) -> list[Defense | None]:
    """The defences that a manifest or a result names; None for what is not known here.

    Others wrote these texts, so nothing is imported that was not asked for in this process or is installed.

    >>> known_defenses(["sign", "somebodys.module:Defence:x=1", "noise:sigma=-1"])
    [SignCompression(), None, None]
    """
    defenses: list[Defense | None] = []
    for spec in specs:
        try:
            defenses.append(_parsed(spec) if split_parameters(spec)[0] in DEFENSES else None)
        except GradleakError:
            defenses.append(None)
    return defenses


def _parsed(spec: str) -> Defense:
    name, values = split_parameters(spec)
    return validated(DEFENSES.get(name), values, f"defence {name!r}")
