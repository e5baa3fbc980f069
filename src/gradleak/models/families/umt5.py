"""uMT5: mT5 with relative positions of every layer's own."""

from __future__ import annotations

from dataclasses import replace

from gradleak.models.families.t5 import T5

UMT5 = replace(
    T5,
    name="umt5",
    sides=tuple(replace(side, name="umt5") for side in T5.sides),
    rules={"UMT5LayerNorm": "gradleak.matching.rules:rms_norm"},
)
