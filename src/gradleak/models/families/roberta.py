"""RoBERTa: BERT's layers under another head."""

from __future__ import annotations

from dataclasses import replace

from gradleak.models.families.bert import BERT

ROBERTA = replace(
    BERT,
    name="roberta",
    first_position=2,  # rows 0 and 1 are reserved for padding
    head={"classification": ("classifier",), "masked-lm": ("lm_head",), "token-classification": ("classifier",)},
)
