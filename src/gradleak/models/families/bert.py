"""BERT."""

from __future__ import annotations

from gradleak.models.families.base import Family

LAYER = {
    "query": "attention.self.query",
    "key": "attention.self.key",
    "value": "attention.self.value",
    "attention_out": "attention.output.dense",
    "ffn_in": "intermediate.dense",
    "ffn_out": "output.dense",
}

BERT = Family(
    name="bert",
    kind="encoder",
    token_embedding="embeddings.word_embeddings",
    positions="embeddings.position_embeddings",
    token_types="embeddings.token_type_embeddings",
    embedding_norm="embeddings.LayerNorm",
    layers="encoder.layer",
    roles=LAYER,
    head={
        "classification": ("bert.pooler", "classifier"),
        "masked-lm": ("cls",),
        "token-classification": ("classifier",),
    },
)
