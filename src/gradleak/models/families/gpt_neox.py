"""GPT-NeoX, such as Pythia: attention and feed-forward block side by side, positions turn a part of each head."""

from __future__ import annotations

from gradleak.models.families.base import Family, Fused

GPT_NEOX = Family(
    name="gpt_neox",
    kind="decoder",
    token_embedding="embed_in",
    layers="layers",
    roles={
        # every head has its query, key and value together
        "query": Fused("attention.query_key_value", 0, 3, groups="num_attention_heads"),
        "key": Fused("attention.query_key_value", 1, 3, groups="num_attention_heads"),
        "value": Fused("attention.query_key_value", 2, 3, groups="num_attention_heads"),
        "attention_out": "attention.dense",
        "ffn_in": "mlp.dense_h_to_4h",
        "ffn_out": "mlp.dense_4h_to_h",
    },
    head={"causal-lm": ("lm_head",), "classification": ("score",)},
    parallel="use_parallel_residual",
    rotary=True,
)
