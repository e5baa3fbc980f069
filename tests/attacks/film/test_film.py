"""FILM as a whole, on tiny and on real language models."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from tiny import TEXTS, tiny_model

from gradleak import Client, GradleakError, TextModel, attack, load_model
from gradleak.attacks.film.sentence_bounds import end_tokens
from gradleak.core.budget import Budget


def test_the_model_is_left_alone(writer: TextModel) -> None:
    before = {name: p.detach().clone() for name, p in writer.parameters().items()}
    layers = len(writer.adapter.layers)
    attack(Client(writer).update(TEXTS), writer, "film", rounds=2, beams=4, groups=2)
    assert all(torch.equal(before[name], p) for name, p in writer.parameters().items())
    assert writer.module.config.num_hidden_layers == layers
    assert [m.layer_idx for m in writer.module.modules() if hasattr(m, "layer_idx")] == list(range(layers))


@pytest.mark.parametrize("score", ["explained", "film"])
def test_it_repeats_itself_and_says_what_it_found(writer: TextModel, score: str) -> None:
    update = Client(writer).update(TEXTS)
    first, again = (
        attack(update, writer, "film", score=score, rounds=2, beams=4, groups=2, keep=0.0, reorder=1, seed=3)[0]
        for _ in range(2)
    )
    assert first.sentences
    assert [s.tokens for s in first.sentences] == [s.tokens for s in again.sentences]
    assert first.found == ["bag", "lengths"]
    names = set(first.bag) | set(writer.tokenizer.convert_ids_to_tokens(list(end_tokens(writer))))
    for sentence in first.sentences:
        assert set(writer.tokenizer.convert_ids_to_tokens(sentence.tokens)) <= names
    ranks = [sentence.confidence for sentence in first.sentences]
    assert ranks == sorted(ranks, reverse=True)


def test_a_budget_ends_it(writer: TextModel) -> None:
    (found,) = attack(Client(writer).update(TEXTS), writer, "film", budget=Budget(seconds=0.0))
    assert found.status == "budget-exhausted"


@pytest.mark.parametrize("text", ["!?", ".."])
def test_a_text_of_punctuation_alone(writer: TextModel, text: str) -> None:
    """No token of it looks like a beginning."""
    (found,) = attack(Client(writer).update([text]), writer, "film", rounds=2, beams=4)
    assert found.status == "completed"
    assert set(text) <= set("".join(found.bag))


def test_an_update_too_large_to_invert_is_reported(writer: TextModel) -> None:
    update = Client(writer).update(TEXTS)
    huge = dataclasses.replace(update, tensors={name: 1e30 * t for name, t in update.tensors.items()})
    (found,) = attack(huge, writer, "film", rounds=1, beams=4)
    assert any("no matrix of the upper layers" in note for note in found.notes)


def test_a_classifier_is_refused(tiny_bert: TextModel) -> None:
    update = Client(tiny_bert).update(TEXTS, [0, 1, 1])
    with pytest.raises(GradleakError, match="must be a causal language model"):
        attack(update, tiny_bert, "film")


def test_sentences_of_a_real_language_model() -> None:
    pytest.importorskip("gguf", reason="smollm2 is converted once, with gradleak[gguf]")
    model = load_model("smollm2", task="causal-lm")
    texts = ["The loan was refused on Monday.", "Please call Rosa about the new contract."]
    (found,) = attack(Client(model).update(texts), model, "film", rounds=1, beams=8, groups=4)
    assert found.sentences[0].text in texts


def test_fresh_adapters_show_no_tokens_so_nothing_is_written() -> None:
    pytest.importorskip("peft")
    below = tiny_model("llama", "causal-lm")
    model = load_model(below.module, tokenizer=below.tokenizer, task="causal-lm", lora="r=4,targets=query+value")
    (found,) = attack(Client(model).update(TEXTS), model, "film")
    assert not found.sentences
    assert not found.bag
    assert found.reasons
