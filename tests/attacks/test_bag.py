"""Tokens from the rows of the token embedding's gradient."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny import TEXTS, secret_of, tiny_model, tiny_module, tiny_tokenizer

from gradleak import Client, GradleakError, TextModel, attack, audit, load_model, load_update
from gradleak.data.texts import Row


def tokens_of(model: TextModel) -> set[str]:
    ids = {token for sentence in model.encode(TEXTS).sentences() for token in model.content(sentence)}
    return set(model.tokenizer.convert_ids_to_tokens(list(ids)))


@pytest.mark.parametrize("defenses", [[], ["sign"], ["mask:ratio=0.5"], ["quantize:bits=8"]])
def test_the_rows_that_moved_are_the_tokens(tiny_bert: TextModel, defenses: list[str]) -> None:
    update = Client(tiny_bert, defenses=defenses).update(TEXTS, [0, 1, 1], secret_of(0))
    (found,) = attack(update, tiny_bert, "bag")
    assert set(found.bag) == tokens_of(tiny_bert)


def test_under_noise_rows_stand_out_or_not(tiny_bert: TextModel) -> None:
    scale = float(Client(tiny_bert).update(TEXTS, [0, 1, 1]).tensors["bert.embeddings.word_embeddings.weight"].norm())
    little, much = (
        attack(
            Client(tiny_bert, defenses=[f"noise:sigma={s}"]).update(TEXTS, [0, 1, 1], secret_of(0)), tiny_bert, "bag"
        )[0]
        for s in (scale * 1e-3, scale * 100)
    )
    assert set(little.bag) <= tokens_of(tiny_bert)
    assert len(little.bag) > len(tokens_of(tiny_bert)) // 2
    assert not much.bag
    assert "stand out from the noise" in much.notes[0]


def test_a_table_that_was_not_sent_is_said(tiny_bert: TextModel) -> None:
    update = Client(tiny_bert, defenses=["frozen"]).update(TEXTS[:1], [0])
    (rows,) = attack(update, tiny_bert, "bag", spans=False)
    assert not rows.bag
    assert "not sent" in rows.notes[0]


def test_the_span_shows_what_a_frozen_table_hides() -> None:
    model = tiny_model("bert", "classification", width=32)
    (found,) = attack(Client(model, defenses=["frozen"]).update(TEXTS[:1], [0]), model, "bag")
    tokens = model.content(model.encode(TEXTS[:1]).sentences()[0])
    assert set(model.tokenizer.convert_ids_to_tokens(tokens)) <= set(found.bag)


def test_it_repeats_refuses_and_leaves_the_model_alone(tiny_bert: TextModel) -> None:
    before = {name: p.detach().clone() for name, p in tiny_bert.parameters().items()}
    update = Client(tiny_bert).update(TEXTS, [0, 1, 1])
    first, again = (attack(update, tiny_bert, "bag", seed=seed)[0] for seed in (0, 1))
    assert first.bag == again.bag
    assert first.status == "completed"
    assert all(torch.equal(before[name], p) for name, p in tiny_bert.parameters().items())
    with pytest.raises(GradleakError, match="other weights"):
        attack(update, tiny_model("bert", "classification", seed=5), "bag")
    with pytest.raises(GradleakError, match="has no option"):
        attack(update, tiny_bert, "bag", rules="film")


def test_an_audit_scores_the_bag(tiny_bert: TextModel) -> None:
    rows = [Row(text, 0) for text in TEXTS]
    results = audit(tiny_bert, data=rows, attack="bag", batch_size=3, trials=1)
    assert (results.found["bag recall"].mean, results.found["bag precision"].mean) == (100, 100)
    blind = {"spans": False}
    frozen = audit(tiny_bert, data=rows, attack="bag", options=blind, batch_size=3, trials=1, defenses=["frozen"])
    assert (frozen.found["bag recall"].mean, frozen.found["bag precision"].mean) == (0, 0)


def test_a_mapped_update_gives_the_same_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a model whose output layer is its token embedding, too."""
    module = tiny_module("llama", "causal-lm", len(tiny_tokenizer("llama")), 2, 64, 0)
    module.config.tie_word_embeddings = True
    module.tie_weights()
    model = load_model(module, tokenizer=tiny_tokenizer("llama"), task="causal-lm")
    update = Client(model).update(TEXTS[:1])
    monkeypatch.setattr("gradleak.core.tensor_files.MAPPED_FROM", 0)
    mapped = load_update(update.save(tmp_path), model)
    (here,), (there,) = attack(update, model, "bag"), attack(mapped, model, "bag")
    assert here.bag == there.bag
