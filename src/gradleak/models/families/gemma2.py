"""Gemma 2: norms before and after each block, every other layer sees a window, logits and attention are capped."""

from __future__ import annotations

from dataclasses import replace

from gradleak.models.families.llama import LLAMA

GEMMA2 = replace(
    LLAMA,
    name="gemma2",
    window="sliding_window",
    logit_cap="final_logit_softcapping",
    rules={
        "Gemma2RMSNorm": "gradleak.matching.rules:rms_norm",
        "Gemma2TextScaledWordEmbedding": "gradleak.matching.rules:scaled_embedding",
    },
)
