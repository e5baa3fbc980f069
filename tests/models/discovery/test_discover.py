"""What is found of a model by structure is what one would declare by hand."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
import torch
import transformers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny import CONFIGS, PAIR_CASES, UNLISTED, usual_sizes

from gradleak import GradleakError
from gradleak.models.discovery.declaration import constant_of, source_of
from gradleak.models.discovery.discover import discover
from gradleak.models.discovery.roles import blocks
from gradleak.models.discovery.sketch import MOST_PARAMETERS, Unclear, sketch
from gradleak.models.families import FAMILIES, Family, Fused

# What the declaration by hand says for models of the family that the tiny one is not like, and why that is no harm.
DIFFERENT: dict[str, dict[str, Any]] = {
    # Version 3 has no such parts; the declaration is for all versions, and passes over what is not there. Keys have
    # relative positions in them, so something common to all of them matters, as where positions turn them.
    "deberta-v2": {"positions": None, "token_types": None, "embedding_projection": None, "rotary": True},
    # Found of those models that have it, with the same words.
    "opt": {"refused": {}},
}


def config_of(kind: str, layers: int = 2, width: int = 16) -> Any:
    return {**CONFIGS, **UNLISTED}[kind](200, layers, width)


@pytest.mark.parametrize("name", sorted(set(CONFIGS) - set(PAIR_CASES)))
def test_listed_families_are_found_as_they_are_declared(name: str) -> None:
    """But for tasks whose heads are the business of the tests of tasks."""
    found, declared = discover(config_of(name)), replace(FAMILIES.get(name), **DIFFERENT.get(name, {}))
    heads = {task: paths for task, paths in declared.head.items() if task in found.head}
    assert set(heads) >= {"classification"}
    for each in fields(Family):
        mine, theirs = getattr(found, each.name), getattr(declared, each.name)
        if each.name == "head":
            mine, theirs = {task: mine[task] for task in heads}, heads
        assert mine == theirs, each.name


def test_the_size_of_the_model_does_not_matter() -> None:
    """The sketch of a large model is small, and shows the same."""
    sizes = {"hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8}
    large = transformers.LlamaConfig(**sizes, num_hidden_layers=32, vocab_size=128_256)
    assert sum(parameter.numel() for parameter in sketch(large, "causal-lm").module.parameters()) < 1e6
    assert replace(discover(large), head=FAMILIES.get("llama").head) == FAMILIES.get("llama")
    phi = transformers.Phi3Config(**sizes, num_hidden_layers=32, vocab_size=32_064)
    assert discover(phi).roles == FAMILIES.get("phi3").roles


def test_matrices_that_hold_several_roles_in_ways_of_their_own() -> None:
    path = "self_attention.query_key_value"
    one = transformers.FalconConfig(**usual_sizes(200, 2, 32) | {"num_attention_heads": 4})
    assert discover(one).roles["key"] == Fused(path, 1, 3, heights=(4, 1, 1))  # one key for four queries
    codegen = transformers.CodeGenConfig(vocab_size=200, n_embd=64, n_layer=2, n_head=8, rotary_dim=4, n_positions=64)
    roles = discover(codegen).roles
    assert [roles[role] for role in ("query", "value", "key")] == [
        Fused("attn.qkv_proj", number, 3, groups=4) for number in range(3)
    ]


def test_what_has_no_declaration_is_found_out() -> None:
    sizes = usual_sizes(200, 2, 16)
    granite = discover(config_of("granite"))
    assert granite.logit_scale == pytest.approx(0.5)
    assert discover(config_of("cohere")).logit_scale == "logit_scale"
    assert discover(config_of("cohere")).parallel is True
    assert discover(config_of("stablelm")).parallel == "use_parallel_residual"
    window = discover(config_of("starcoder2"))
    assert (window.window, window.kind, window.rotary) == ("sliding_window", "decoder", True)
    assert discover(transformers.ErnieConfig(**sizes)).token_types == "embeddings.token_type_embeddings"
    assert discover(config_of("cohere")).rules == {"CohereLayerNorm": "gradleak.matching.rules:centred_norm"}


REFUSED = {
    "MixtralConfig": "experts",
    "Qwen2MoeConfig": "experts",
    "MambaConfig": "is a convolution, which mixes tokens",
    "BartConfig": "an encoder with a decoder",
    "FNetConfig": "not by queries, keys and values",
    "BloomConfig": "do not take a mask that says who sees whom",
    "CTRLConfig": "positions that are not in a table",
    "Gemma3Config": "for other things than text",
    "ViTConfig": "has no classifier and no causal language model",
}


SMALL = {
    "CTRLConfig": {"n_embd": 32, "dff": 64, "n_head": 2, "n_layer": 2},
    "FNetConfig": {"hidden_size": 32, "intermediate_size": 64},
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_found_is_refused_with_what_it_is(kind: str) -> None:
    config = getattr(transformers, kind)(**SMALL.get(kind, {}))
    with pytest.raises(GradleakError, match=f"are not listed.*{REFUSED[kind]}.*--family") as refusal:
        discover(config)
    assert "\n" not in str(refusal.value)


def test_the_seeds_of_others_are_left_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    sketch(config_of("olmo2"), "causal-lm")
    assert torch.equal(torch.rand(3), expected)


# --- hostile configurations -----------------------------------------------------------------------------


@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(
    name=st.sampled_from(
        ["hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "vocab_size", "head_dim"]
    ),
    value=st.sampled_from([-1, 0, 1, 3, 7, 10**6, 10**12]),
)
def test_sizes_of_any_kind_end_in_a_declaration_or_a_line(name: str, value: int) -> None:
    values = {**config_of("olmo2").to_dict(), name: value}
    try:
        config = transformers.Olmo2Config.from_dict(values)
    except Exception:
        return
    try:
        assert discover(config).name == "olmo2"
    except GradleakError as error:
        assert "\n" not in str(error)


def test_a_sketch_that_would_be_large_is_not_made() -> None:
    config = transformers.Olmo2Config(**usual_sizes(200, 2, 16) | {"intermediate_size": MOST_PARAMETERS})
    with pytest.raises(Unclear, match="too large parts"):
        sketch(config, "causal-lm")


# --- the declaration as text ----------------------------------------------------------------------------


@pytest.mark.parametrize("family", [*FAMILIES.names(), *UNLISTED])
def test_the_printed_declaration_is_the_family(family: str) -> None:
    own = FAMILIES.get(family) if family in FAMILIES else discover(config_of(family))
    scope: dict[str, Any] = {}
    exec(source_of(own), scope)
    assert scope[constant_of(own)] == own


ROLE = st.sampled_from(["query", "key", "value", "ffn_in", "ffn_gate"])


@given(
    order=st.lists(ROLE, min_size=2, max_size=4, unique=True),
    heights=st.lists(st.integers(1, 3), min_size=4, max_size=4),
    groups=st.integers(1, 4),
    unit=st.integers(1, 3),
)
def test_blocks_lead_back_to_the_labels(order: list[str], heights: list[int], groups: int, unit: int) -> None:
    """Whatever the order, the heights and the groups: a part's rows are those that have its role."""
    from gradleak.models.adapter import Block

    period = [role for role, height in zip(order, heights, strict=False) for _ in range(height * unit)]
    labels = period * groups
    for role, where in blocks("matrix", labels, None).items():
        assert isinstance(where, Fused)
        tall = tuple(int(each) for each in where.heights) if where.heights else (1,) * where.count
        rows = Block(where.index, tall, int(where.groups or 1)).of(torch.arange(len(labels))).tolist()
        assert rows == [number for number, label in enumerate(labels) if label == role]
