"""Mistral: Llama's layers; in the first versions all of them see only a window of the text."""

from __future__ import annotations

from dataclasses import replace

from gradleak.models.families.llama import LLAMA

MISTRAL = replace(
    LLAMA, name="mistral", window="sliding_window", rules={"MistralRMSNorm": "gradleak.matching.rules:rms_norm"}
)
