"""Gemma 3, the text models: Gemma 2's layers with norms of each head's queries and keys, and two rotary bases."""

from __future__ import annotations

from dataclasses import replace

from gradleak.models.families.llama import LLAMA

GEMMA3_TEXT = replace(
    LLAMA,
    name="gemma3_text",
    window="sliding_window",
    logit_cap="final_logit_softcapping",
    rules={
        "Gemma3RMSNorm": "gradleak.matching.rules:rms_norm",
        "Gemma3TextScaledWordEmbedding": "gradleak.matching.rules:scaled_embedding",
    },
)
