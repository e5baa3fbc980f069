"""GPT-Neo: every other layer sees only a window of the text."""

from __future__ import annotations

from gradleak.models.families.base import Family

GPT_NEO = Family(
    name="gpt_neo",
    kind="decoder",
    token_embedding="wte",
    positions="wpe",
    layers="h",
    roles={
        "query": "attn.attention.q_proj",
        "key": "attn.attention.k_proj",
        "value": "attn.attention.v_proj",
        "attention_out": "attn.attention.out_proj",
        "ffn_in": "mlp.c_fc",
        "ffn_out": "mlp.c_proj",
    },
    head={"causal-lm": ("lm_head",), "classification": ("score",)},
    window="window_size",
    layer_kinds="attention_layers",
    window_mask="attn.attention.bias",
)
