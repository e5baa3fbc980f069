"""SmolLM 3: Llama's layers, some of which do not see positions."""

from __future__ import annotations

from dataclasses import replace

from gradleak.models.families.llama import LLAMA

SMOLLM3 = replace(
    LLAMA, name="smollm3", window="sliding_window", rules={"SmolLM3RMSNorm": "gradleak.matching.rules:rms_norm"}
)
