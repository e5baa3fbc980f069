"""DistilBERT."""

from __future__ import annotations

from gradleak.models.families.base import Family

DISTILBERT = Family(
    name="distilbert",
    kind="encoder",
    token_embedding="embeddings.word_embeddings",
    positions="embeddings.position_embeddings",
    embedding_norm="embeddings.LayerNorm",
    layers="transformer.layer",
    roles={
        "query": "attention.q_lin",
        "key": "attention.k_lin",
        "value": "attention.v_lin",
        "attention_out": "attention.out_lin",
        "ffn_in": "ffn.lin1",
        "ffn_out": "ffn.lin2",
    },
    head={
        "classification": ("pre_classifier", "classifier"),
        "masked-lm": ("vocab_transform", "vocab_layer_norm", "vocab_projector"),
        "token-classification": ("classifier",),
    },
)
