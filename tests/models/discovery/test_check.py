"""A declaration of one's own is used if it is true, and refused in one line if it is not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tiny import CONFIGS, UNLISTED, tiny_model, unlisted_model

from gradleak import GradleakError, load_model
from gradleak.models.discovery.check import check_declaration
from gradleak.models.discovery.discover import discover
from gradleak.models.families import FAMILIES, Family, Fused

OLMO = discover(UNLISTED["olmo2"](200, 2, 16))
BERT = FAMILIES.get("bert")


def check(family: Family) -> None:
    configs = {**CONFIGS, **UNLISTED}
    check_declaration(family, configs["olmo2" if family.name == "olmo2" else family.name](200, 2, 16))


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_the_listed_declarations_are_true(name: str) -> None:
    check(FAMILIES.get(name))


def with_roles(family: Family, **roles: Any) -> Family:
    return replace(family, roles={**family.roles, **roles})


WRONG = {
    "a path of a role": (with_roles(OLMO, query="self_attn.nothing"), r"query: a \w+ has no self_attn.nothing"),
    "a path of a table": (replace(BERT, positions="embeddings.nowhere"), "has no embeddings.nowhere"),
    "a path of the layers": (replace(OLMO, layers="blocks"), "layers: a Olmo2Model has no blocks"),
    "a path of the head": (replace(BERT, head={"classification": ("verdict",)}), "has no verdict"),
    "query and value": (
        with_roles(OLMO, query="self_attn.v_proj", value="self_attn.q_proj"),
        "query is said to be .*v_proj, which computes what value is to be",
    ),
    "attention and feed-forward": (with_roles(OLMO, attention_out="mlp.down_proj"), "what ffn_out is to be"),
    "rows of a matrix": (
        with_roles(FAMILIES.get("gpt2"), query=Fused("attn.c_attn", 2, 3), value=Fused("attn.c_attn", 0, 3)),
        "which computes what value is to be",
    ),
    "interleaved rows": (
        with_roles(FAMILIES.get("gpt_neox"), key=Fused("attention.query_key_value", 1, 3)),
        "key is",
    ),
    "kind": (replace(OLMO, kind="encoder"), "tokens do not see those after them"),
    "table": (replace(BERT, token_embedding="embeddings.position_embeddings"), "not the table of token embeddings"),
    "parallel": (replace(OLMO, parallel=True), "sees what the attention made of it"),
    "first position": (replace(FAMILIES.get("roberta"), first_position=0), "first_position is 0, and .* reads 2"),
    "type": (
        replace(FAMILIES.get("llama"), name="olmo2x"),
        "models of type 'olmo2x', and this one is of type 'olmo2'",
    ),
    "a role that lacks": (replace(OLMO, roles={"query": "self_attn.q_proj"}), "its roles lack key"),
    "no weight": (with_roles(OLMO, ffn_in="mlp"), "mlp is a Olmo2MLP, which has no weight"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_named(case: str) -> None:
    family, message = WRONG[case]
    name = "olmo2" if family.name == "olmo2x" else family.name
    with pytest.raises(GradleakError, match=message) as refusal:
        check_declaration(family, {**CONFIGS, **UNLISTED}[name](200, 2, 16))
    assert "\n" not in str(refusal.value)


def test_ones_own_declaration_takes_the_listed_ones_place() -> None:
    listed = tiny_model("llama", "causal-lm")
    roles = {"gate" if role == "ffn_gate" else role: path for role, path in FAMILIES.get("llama").roles.items()}
    own = replace(FAMILIES.get("llama"), roles=roles)
    model = load_model(listed.module, tokenizer=listed.tokenizer, family=own)
    assert "gate" in model.adapter.parts[0]
    assert model.copied().adapter.family == own
    assert not any("found by structure" in note for note in model.notes)
    with pytest.raises(GradleakError, match="'family' is for text models"):
        load_model("lenet", family=own)


def test_copies_keep_what_was_found() -> None:
    model = unlisted_model("olmo2", "causal-lm")
    assert model.copied().adapter.family == model.to_float64().adapter.family == OLMO
