"""OPT."""

from __future__ import annotations

from gradleak.models.families.base import Family

OPT = Family(
    name="opt",
    kind="decoder",
    token_embedding="decoder.embed_tokens",
    positions="decoder.embed_positions",
    first_position=2,  # rows 0 and 1 are reserved for padding
    first_position_id=0,  # the table adds them itself
    layers="decoder.layers",
    roles={
        "query": "self_attn.q_proj",
        "key": "self_attn.k_proj",
        "value": "self_attn.v_proj",
        "attention_out": "self_attn.out_proj",
        "ffn_in": "fc1",
        "ffn_out": "fc2",
    },
    head={"causal-lm": ("lm_head",), "classification": ("score",)},
    refused={"decoder.project_in": "has embeddings of another width than its layers, as OPT-350m has"},
)
