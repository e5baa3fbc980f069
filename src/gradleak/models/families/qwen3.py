"""Qwen 3: each head's queries and keys are normalised before positions turn them."""

from __future__ import annotations

from dataclasses import replace

from gradleak.models.families.llama import LLAMA

QWEN3 = replace(
    LLAMA, name="qwen3", window="sliding_window", rules={"Qwen3RMSNorm": "gradleak.matching.rules:rms_norm"}
)
