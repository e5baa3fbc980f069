"""Phi-3: Llama's layers with query, key and value in one matrix, and gate and input of the feed-forward block too."""

from __future__ import annotations

from dataclasses import replace

from gradleak.models.families.base import Fused
from gradleak.models.families.llama import LLAMA

# Keys and values have fewer heads than queries.
_HEADS = ("num_attention_heads", "num_key_value_heads", "num_key_value_heads")

PHI3 = replace(
    LLAMA,
    name="phi3",
    window="sliding_window",
    roles={
        "query": Fused("self_attn.qkv_proj", 0, 3, heights=_HEADS),
        "key": Fused("self_attn.qkv_proj", 1, 3, heights=_HEADS),
        "value": Fused("self_attn.qkv_proj", 2, 3, heights=_HEADS),
        "attention_out": "self_attn.o_proj",
        "ffn_in": Fused("mlp.gate_up_proj", 1, 2),
        "ffn_gate": Fused("mlp.gate_up_proj", 0, 2),
        "ffn_out": "mlp.down_proj",
    },
    rules={"Phi3RMSNorm": "gradleak.matching.rules:rms_norm"},
)
