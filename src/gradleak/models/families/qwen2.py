"""Qwen 2 and 2.5: Llama's layers, with biases on query, key and value."""

from __future__ import annotations

from dataclasses import replace

from gradleak.models.families.llama import LLAMA

QWEN2 = replace(
    LLAMA, name="qwen2", window="sliding_window", rules={"Qwen2RMSNorm": "gradleak.matching.rules:rms_norm"}
)
