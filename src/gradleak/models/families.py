"""Where the parts of each supported architecture live.

A family is a declaration, not code: dotted paths from the model's base, found by module identity. Attacks
and selections speak in roles ("query", "ffn_out") and never in pieces of parameter names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from gradleak.core.errors import GradleakError

Task = Literal["classification", "causal-lm"]
Kind = Literal["encoder", "decoder"]

ROLES = ("query", "key", "value", "attention_out", "ffn_in", "ffn_out")


@dataclass(frozen=True)
class Fused:
    """One share of a matrix that holds several roles side by side, such as GPT-2's query-key-value."""

    path: str
    index: int
    count: int


@dataclass(frozen=True)
class Family:
    """Paths are relative to `base_model`, those of `roles` to one layer, those of `head` to the whole model."""

    name: str
    kind: Kind
    words: str
    layers: str
    roles: Mapping[str, str | Fused]
    head: Mapping[Task, tuple[str, ...]]
    positions: str | None = None
    first_position: int = 0
    token_types: str | None = None
    embedding_norm: str | None = None

    @property
    def tasks(self) -> tuple[Task, ...]:
        return tuple(self.head)


_BERT_LIKE = {
    "query": "attention.self.query",
    "key": "attention.self.key",
    "value": "attention.self.value",
    "attention_out": "attention.output.dense",
    "ffn_in": "intermediate.dense",
    "ffn_out": "output.dense",
}

_ALL = (
    Family(
        name="bert",
        kind="encoder",
        words="embeddings.word_embeddings",
        positions="embeddings.position_embeddings",
        token_types="embeddings.token_type_embeddings",
        embedding_norm="embeddings.LayerNorm",
        layers="encoder.layer",
        roles=_BERT_LIKE,
        head={"classification": ("bert.pooler", "classifier")},
    ),
    Family(
        name="roberta",
        kind="encoder",
        words="embeddings.word_embeddings",
        positions="embeddings.position_embeddings",
        first_position=2,  # rows 0 and 1 are reserved for padding
        token_types="embeddings.token_type_embeddings",
        embedding_norm="embeddings.LayerNorm",
        layers="encoder.layer",
        roles=_BERT_LIKE,
        head={"classification": ("classifier",)},
    ),
    Family(
        name="distilbert",
        kind="encoder",
        words="embeddings.word_embeddings",
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
        head={"classification": ("pre_classifier", "classifier")},
    ),
    Family(
        name="mpnet",
        kind="encoder",
        words="embeddings.word_embeddings",
        positions="embeddings.position_embeddings",
        first_position=2,
        embedding_norm="embeddings.LayerNorm",
        layers="encoder.layer",
        roles={
            **_BERT_LIKE,
            "query": "attention.attn.q",
            "key": "attention.attn.k",
            "value": "attention.attn.v",
            "attention_out": "attention.attn.o",
        },
        head={"classification": ("classifier",)},
    ),
    Family(
        name="gpt2",
        kind="decoder",
        words="wte",
        positions="wpe",
        layers="h",
        roles={
            "query": Fused("attn.c_attn", 0, 3),
            "key": Fused("attn.c_attn", 1, 3),
            "value": Fused("attn.c_attn", 2, 3),
            "attention_out": "attn.c_proj",
            "ffn_in": "mlp.c_fc",
            "ffn_out": "mlp.c_proj",
        },
        head={"causal-lm": ("lm_head",), "classification": ("score",)},
    ),
    Family(
        name="llama",
        kind="decoder",
        words="embed_tokens",
        layers="layers",
        roles={
            "query": "self_attn.q_proj",
            "key": "self_attn.k_proj",
            "value": "self_attn.v_proj",
            "attention_out": "self_attn.o_proj",
            "ffn_in": "mlp.up_proj",
            "ffn_gate": "mlp.gate_proj",  # a seventh matrix: Llama's feed-forward block is gated
            "ffn_out": "mlp.down_proj",
        },
        head={"causal-lm": ("lm_head",), "classification": ("score",)},
    ),
)
FAMILIES: dict[str, Family] = {family.name: family for family in _ALL}


def family_of(model_type: str) -> Family:
    """The family of a Hugging Face `model_type`, or an error that lists those supported."""
    if model_type not in FAMILIES:
        raise GradleakError(
            f"models of type {model_type!r} are not supported; supported families: {', '.join(FAMILIES)}"
        )
    return FAMILIES[model_type]
