"""MPNet."""

from __future__ import annotations

from gradleak.models.families.base import Family
from gradleak.models.families.bert import LAYER

MPNET = Family(
    name="mpnet",
    kind="encoder",
    token_embedding="embeddings.word_embeddings",
    positions="embeddings.position_embeddings",
    first_position=2,  # rows 0 and 1 are reserved for padding
    embedding_norm="embeddings.LayerNorm",
    layers="encoder.layer",
    roles={
        **LAYER,
        "query": "attention.attn.q",
        "key": "attention.attn.k",
        "value": "attention.attn.v",
        "attention_out": "attention.attn.o",
    },
    head={"classification": ("classifier",), "masked-lm": ("lm_head",), "token-classification": ("classifier",)},
)
