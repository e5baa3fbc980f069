"""Exact recovery of packed rows: one long text, taken apart at the end tokens; nothing cut is called whole."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny import TEXTS, tiny_model

from gradleak import Client, TextModel, attack, score
from gradleak.attacks.exact.rows import texts_of
from gradleak.updates.client_rule import ClientRule


@cache
def model_of(family: str) -> TextModel:
    """The end token of Llama and Qwen pads too, so its embedding is zeros; that of GPT-2 is not."""
    model = tiny_model(family, "causal-lm", layers=3, width=128)
    zeros = bool((model.token_embedding[model.tokenizer.eos_token_id] == 0).all())
    assert zeros == (family != "gpt2")
    return model


@pytest.mark.parametrize("family", ["llama", "gpt2", "qwen2"])
@pytest.mark.parametrize(
    "rule", ["fedsgd:pack=60,packing=wrapped", "fedsgd:pack=40,pack_attention=across", "fedsgd:pack=40"]
)
def test_texts_of_rows_come_back_whole(family: str, rule: str) -> None:
    model = model_of(family)
    (found,) = attack(Client(model, client=rule).update(TEXTS), model, "exact")
    assert score(found, TEXTS, model).metrics["exact_match"] == 100
    assert all(sentence.certified for sentence in found.sentences)
    assert len(found.sentences) == len(TEXTS)


def test_a_cut_text_is_no_whole_one() -> None:
    model = model_of("gpt2")
    (found,) = attack(Client(model, client="fedsgd:pack=24,packing=wrapped").update(TEXTS), model, "exact")
    whole = [sentence.text for sentence in found.sentences if sentence.certified]
    assert whole
    assert set(whole) < set(TEXTS)
    others = [sentence.text for sentence in found.sentences if not sentence.certified]
    assert all(any(text in truth for truth in TEXTS) for text in others)
    metrics = score(found, TEXTS, model).metrics
    assert metrics["exact_match"] < 100 < 1.2 * metrics["rougeL"]


@given(st.lists(st.integers(1, 40), max_size=30), st.booleans(), st.sampled_from(["bfd", "wrapped"]))
def test_every_token_of_a_row_is_in_one_text(tokens: list[int], first: bool, packing: str) -> None:
    model = model_of("gpt2")
    rule = ClientRule(pack=60, packing=packing, pack_attention="across")  # type: ignore[arg-type]
    texts = texts_of(tokens, model, rule, first)
    assert model.content([token for text, _ in texts for token in text]) == model.content(tokens)
    assert all(text[-1] == model.tokenizer.eos_token_id for text, whole in texts if whole)
    assert texts_of(tokens, model, ClientRule(), first) == [(tokens, True)]
