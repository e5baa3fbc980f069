"""Llama, and what is built like it."""

from __future__ import annotations

from gradleak.models.families.base import Family

LLAMA = Family(
    name="llama",
    kind="decoder",
    token_embedding="embed_tokens",
    layers="layers",
    roles={
        "query": "self_attn.q_proj",
        "key": "self_attn.k_proj",
        "value": "self_attn.v_proj",
        "attention_out": "self_attn.o_proj",
        "ffn_in": "mlp.up_proj",
        "ffn_gate": "mlp.gate_proj",  # a seventh matrix: Llama's feed-forward block is gated
        "ffn_out": "mlp.down_proj",
    },
    head={"causal-lm": ("lm_head",), "classification": ("score",)},
    rotary=True,
    rules={"LlamaRMSNorm": "gradleak.matching.rules:rms_norm"},
)
