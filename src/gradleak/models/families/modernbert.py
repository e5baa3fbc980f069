"""ModernBERT: an encoder without a table of positions, most of whose layers see only what is near."""

from __future__ import annotations

from gradleak.models.families.base import Family, Fused

MODERNBERT = Family(
    name="modernbert",
    kind="encoder",
    token_embedding="embeddings.tok_embeddings",
    embedding_norm="embeddings.norm",
    layers="layers",
    roles={
        "query": Fused("attn.Wqkv", 0, 3),
        "key": Fused("attn.Wqkv", 1, 3),
        "value": Fused("attn.Wqkv", 2, 3),
        "attention_out": "attn.Wo",
        "ffn_in": Fused("mlp.Wi", 1, 2),
        "ffn_gate": Fused("mlp.Wi", 0, 2),  # the activation is taken of this half
        "ffn_out": "mlp.Wo",
    },
    head={
        "classification": ("head", "classifier"),
        "masked-lm": ("head", "decoder"),
        "token-classification": ("head", "classifier"),
    },
    rotary=True,
)
