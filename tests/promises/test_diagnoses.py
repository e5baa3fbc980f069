"""Why little was read: what the manifest and the tensors show is named, and nothing that they rule out is blamed."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from tiny import wide_model

from gradleak import Client, TextModel, Update, attack, audit, judge
from gradleak.data.texts import read_data

WIDTH = 128
TEXTS = [row.text for row in read_data()]
TOO_MANY = f"{WIDTH} tokens or more"


@pytest.fixture(scope="module")
def model() -> TextModel:
    return wide_model("bert", "classification")


def short(model: TextModel, count: int, most: int = 14) -> list[str]:
    return [text for text in TEXTS if len(model.tokenizer(text)["input_ids"]) <= most][:count]


def notes(update: Update, model: TextModel, name: str = "exact") -> str:
    (found,) = attack(update, model, name)
    assert not any(sentence.certified for sentence in found.sentences)
    return " ".join(found.notes)


def labels(texts: list[str]) -> list[int]:
    return [number % 2 for number in range(len(texts))]


def test_two_local_steps_are_named_and_too_many_tokens_are_not(model: TextModel) -> None:
    texts = short(model, 4)
    assert sum(model.encode(texts).lengths) < WIDTH
    client = Client(model, client="fedavg:epochs=1,batch=2,lr=5e-5")
    said = notes(client.update(texts, labels(texts)), model)
    assert "2 local steps" in said
    assert "rounded weights" in said
    assert TOO_MANY not in said


def test_dropout_is_named(model: TextModel) -> None:
    """Where tokens take so many dimensions that masks cannot be solved for."""
    texts = short(model, 4)
    said = notes(Client(model, client="fedsgd:mode=train").update(texts, labels(texts)), model)
    assert "dropout" in said
    assert TOO_MANY not in said


@pytest.mark.parametrize(
    "defense", ["noise:sigma=0.01", "mask:ratio=0.5", "prune:ratio=0.9", "sign", "dpsgd:noise=1.0"]
)
def test_defences_are_named(model: TextModel, defense: str) -> None:
    texts = short(model, 2)
    update = Client(model, ("lengths",), defenses=[defense]).update(texts, labels(texts))
    said = notes(update, model)
    assert f"the defence {defense.partition(':')[0]}" in said
    assert TOO_MANY not in said  # the lengths are known


def test_another_optimiser_is_named(model: TextModel) -> None:
    texts = short(model, 4)
    moved = Client(model, client="fedavg:epochs=2,batch=2,lr=0.1").update(texts, labels(texts))
    note = "trained with adamw, not with plain SGD"
    manifest = moved.manifest.model_copy(update={"notes": (note,)})
    tensors = {name: 0.1 * tensor.sign() for name, tensor in moved.tensors.items()}
    assert note in notes(Update(tensors, manifest), model)


@pytest.mark.parametrize("known", ["lengths", "batch_size"])
def test_noise_that_nobody_names_is_not_blamed_on_the_batch(model: TextModel, known: str) -> None:
    texts = short(model, 4)
    plain = Client(model, (known,)).update(texts, labels(texts))
    positions = model.adapter.parameter_of(model.adapter.positions)
    tensors = {
        name: tensor if name == positions else tensor + 0.01 * torch.randn(tensor.shape)
        for name, tensor in plain.tensors.items()
    }
    said = notes(dataclasses.replace(plain, tensors=tensors), model)
    assert TOO_MANY not in said
    assert "the manifest does not name" in said


def test_a_batch_beyond_the_limit_is_still_named(model: TextModel) -> None:
    texts = [text for text in TEXTS if len(model.tokenizer(text)["input_ids"]) <= 40][:16]
    assert sum(model.encode(texts).lengths) > WIDTH
    assert TOO_MANY in notes(Client(model, ("lengths",)).update(texts, labels(texts)), model)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"client": "fedavg:epochs=1,batch=2,lr=5e-5", "batch_size": 4}, {"local-steps"}),
        ({"client": "fedsgd:mode=train", "batch_size": 4}, {"dropout"}),
        ({"client": "fedavg:epochs=2,batch=2,lr=0.05,mode=train", "batch_size": 4}, {"dropout", "local-steps"}),
        ({"client": "fedavg:epochs=2,batch=2,lr=0.05", "batch_size": 4, "defenses": ["noise:sigma=1"]},
         {"noise", "local-steps"}),
    ],
)  # fmt: skip
def test_the_verdict_names_what_the_client_did(model: TextModel, settings: dict, expected: set[str]) -> None:
    found = audit(model, data=short(model, 12), trials=1, attack="exact", **settings)
    (attempt,) = judge([found]).scenarios[0].attacks
    assert {obstacle.kind for obstacle in attempt.obstacles} == expected
    text = " ".join(obstacle.text for obstacle in attempt.obstacles)
    assert "too large" not in text
    assert "nothing known" not in text
