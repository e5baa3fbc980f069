"""Gemma: Llama's layers under embeddings that are multiplied by the root of their width; norms add one to weights."""

from __future__ import annotations

from dataclasses import replace

from gradleak.models.families.llama import LLAMA

GEMMA = replace(
    LLAMA,
    name="gemma",
    rules={
        "GemmaRMSNorm": "gradleak.matching.rules:rms_norm",
        "GemmaTextScaledWordEmbedding": "gradleak.matching.rules:scaled_embedding",
    },
)
