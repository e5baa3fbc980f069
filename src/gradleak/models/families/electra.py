"""ELECTRA: BERT's layers; small models have embeddings of another width."""

from __future__ import annotations

from dataclasses import replace

from gradleak.models.families.bert import BERT

ELECTRA = replace(
    BERT,
    name="electra",
    embedding_projection="embeddings_project",
    head={
        "classification": ("classifier",),
        "masked-lm": ("generator_predictions", "generator_lm_head"),
        "token-classification": ("classifier",),
    },
)
