"""DeBERTa 2 and 3: attention sees relative positions, through the query and key matrices that tokens go through."""

from __future__ import annotations

from dataclasses import replace

from gradleak.models.families.bert import BERT, LAYER

DEBERTA_V2 = replace(
    BERT,
    name="deberta-v2",
    embedding_projection="embeddings.embed_proj",
    roles={
        **LAYER,
        "query": "attention.self.query_proj",
        "key": "attention.self.key_proj",
        "value": "attention.self.value_proj",
    },
    inputs_seen_by=("value",),  # the gradients of the others have relative positions in them
    head={
        "classification": ("pooler", "classifier"),
        "masked-lm": ("cls",),
        "token-classification": ("classifier",),
    },
)
