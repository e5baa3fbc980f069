"""What runs on a graphics card gives what it gives on the processor; skipped where there is none."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from blobs import blobs
from pictured import image_model
from tiny import ALL_KNOWN, PAIR_CASES, TARGETS, TEXTS, secret_of, tiny_model, wide_model

from gradleak import Client, ImageClient, TextModel, Update, attack, contains, load_model, load_update
from gradleak.data.texts import read_data

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")

QUICK = {"steps": 4, "init_draws": 2, "init_orders": 0, "discrete_every": 2, "candidates": 4, "prior": "none"}
CASES = [
    ("bert", "classification"), ("modernbert", "classification"), ("bert", "masked-lm"),
    ("bert", "token-classification"), ("llama", "causal-lm"), ("gemma3_text", "causal-lm"),
]  # fmt: skip
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{case[1]}")


def on_the_card(model: TextModel, **how: Any) -> TextModel:
    return load_model(model.copied().module, tokenizer=model.tokenizer, task=model.task, device="cuda", **how)


def update_of(model: TextModel, **client: Any) -> Update:
    labels = [model.goal.drawn_label(model, TEXTS[0], random.Random(0))] if model.goal.labelled else None
    return Client(model, ALL_KNOWN, **client).update(TEXTS[:1], labels, secret_of(0))


@every_case
@pytest.mark.parametrize("rule", ["fedsgd", "adamw:lr=1e-3,epochs=2"])
def test_clients_send_the_same(case: tuple[str, str], rule: str) -> None:
    model = tiny_model(*case)
    here, there = update_of(model, client=rule), update_of(on_the_card(model), client=rule)
    for name, tensor in here.tensors.items():
        torch.testing.assert_close(there.tensors[name].cpu(), tensor, rtol=1e-3, atol=1e-5)


@every_case
def test_sentences_come_back_proved(case: tuple[str, str], tmp_path: Path) -> None:
    model = on_the_card(wide_model(*case))
    update = load_update(update_of(model).save(tmp_path), model)
    (found,) = attack(update, model, "exact")
    assert [sentence.tokens for sentence in found.sentences] == [
        model.content(model.encode(TEXTS[:1]).sentences()[0])
    ]
    assert all(sentence.certified for sentence in found.sentences)


@pytest.mark.parametrize("family", PAIR_CASES)
def test_pairs_come_back_proved(family: str) -> None:
    model = on_the_card(wide_model(family, "seq2seq"))
    (found,) = attack(Client(model).update(TEXTS[:1], TARGETS[:1]), model, "exact")
    assert all(sentence.certified for sentence in found.sentences)
    assert len(found.sentences) == 2


@pytest.mark.parametrize("name", ["auto", "bag", "film", "soft", "lamp-cos", "dlg", "tag", "subspace"])
def test_every_attack_runs(name: str) -> None:
    model = on_the_card(tiny_model("llama", "causal-lm", layers=4, width=64))
    options = QUICK if name in ("lamp-cos", "dlg", "tag", "subspace") else {}
    (found,) = attack(update_of(model), model, name, **options)
    assert found.sentences or found.bag


def test_adapters_and_candidates() -> None:
    model = on_the_card(tiny_model("llama", "causal-lm", layers=4, width=64), lora="r=32,targets=query+value,b=0.2")
    update, texts = update_of(model), [row.text for row in read_data()]
    (found,) = attack(update, model, "exact")
    assert found.sentences
    told = contains(update, model, [TEXTS[0], *texts[:4]], public=texts[4:], references=40)
    assert told.candidates[0].score == max(candidate.score or 0.0 for candidate in told.candidates)


@pytest.mark.parametrize("defence", ["dpsgd:noise=0.1,clip=1", "noise:sigma=0.01", "prune:ratio=0.5", "sign"])
def test_defences_run(defence: str) -> None:
    assert update_of(on_the_card(tiny_model("bert", "classification")), defenses=[defence]).tensors


@pytest.mark.parametrize("name", ["exact", "ig"])
def test_images(name: str) -> None:
    below = image_model("vit")
    model = load_model(below.copied().module, shape=below.shape, device="cuda")
    (found,) = attack(ImageClient(model).update(blobs(1)), model, name, **({"steps": 1} if name == "ig" else {}))
    assert found.images
