"""ALBERT: embeddings of another width than the layers, and one layer that runs many times."""

from __future__ import annotations

from dataclasses import replace

from gradleak.models.families.bert import BERT

ALBERT = replace(
    BERT,
    name="albert",
    embedding_projection="encoder.embedding_hidden_mapping_in",
    layers="encoder.albert_layer_groups.*.albert_layers",
    roles={
        "query": "attention.query",
        "key": "attention.key",
        "value": "attention.value",
        "attention_out": "attention.dense",
        "ffn_in": "ffn",
        "ffn_out": "ffn_output",
    },
    head={
        "classification": ("albert.pooler", "classifier"),
        "masked-lm": ("predictions",),
        "token-classification": ("classifier",),
    },
)
