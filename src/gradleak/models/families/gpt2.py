"""GPT-2."""

from __future__ import annotations

from gradleak.models.families.base import Family, Fused

GPT2 = Family(
    name="gpt2",
    kind="decoder",
    token_embedding="wte",
    positions="wpe",
    layers="h",
    roles={
        "query": Fused("attn.c_attn", 0, 3),
        "key": Fused("attn.c_attn", 1, 3),
        "value": Fused("attn.c_attn", 2, 3),
        "attention_out": "attn.c_proj",
        "ffn_in": "mlp.c_fc",
        "ffn_out": "mlp.c_proj",
    },
    head={"causal-lm": ("lm_head",), "classification": ("score",)},
    transposed=("Conv1D",),
    rules={"Conv1D": "gradleak.matching.rules:transposed_linear"},
)
