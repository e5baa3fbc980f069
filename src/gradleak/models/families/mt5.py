"""mT5: the second version of T5, of many languages."""

from __future__ import annotations

from dataclasses import replace

from gradleak.models.families.t5 import T5

MT5 = replace(
    T5,
    name="mt5",
    sides=tuple(replace(side, name="mt5") for side in T5.sides),
    rules={"MT5LayerNorm": "gradleak.matching.rules:rms_norm"},
)
