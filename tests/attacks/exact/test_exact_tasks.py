"""Exact recovery for every task: sentences are proved whatever was learned of them, and labels are read with them."""

from __future__ import annotations

from random import Random

import pytest
from tiny import TEXTS, secret_of, tiny_model

from gradleak import Client, TextModel, attack
from gradleak.models.batch import Batch
from gradleak.updates.client_rule import ClientRule


def wide(family: str, task: str) -> TextModel:
    return tiny_model(family, task, layers=4, width=128)


def written(model: TextModel, texts: list[str]) -> list[str]:
    return sorted(model.decode(row) for row in model.encode(texts).sentences())


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert"])
@pytest.mark.parametrize("task", ["multi-label", "regression", "token-classification"])
def test_sentences_and_labels_are_read(family: str, task: str) -> None:
    model, rng = wide(family, task), Random(5)
    labels = [model.goal.drawn_label(model, text, rng) for text in TEXTS[:2]]
    update = Client(model, ("batch_size",)).update(TEXTS[:2], labels)
    (found,) = attack(update, model, "exact")
    assert sorted(sentence.text for sentence in found.sentences) == written(model, TEXTS[:2])
    assert all(sentence.certified for sentence in found.sentences)
    texts = [sentence.text for sentence in found.sentences]
    order = [texts.index(model.decode(row)) for row in model.encode(TEXTS[:2]).sentences()]
    assert found.labels is not None
    for label, place in zip(labels, order, strict=True):
        own = found.labels[place]
        assert own == (pytest.approx(label, abs=0.01) if task == "regression" else label)


@pytest.mark.parametrize("task", ["multi-label", "regression"])
def test_decoders_that_learn_numbers_of_a_text(task: str) -> None:
    model, rng = wide("gpt2", task), Random(5)
    labels = [model.goal.drawn_label(model, text, rng) for text in TEXTS[:2]]
    (found,) = attack(Client(model, ("batch_size",)).update(TEXTS[:2], labels), model, "exact")
    assert sorted(sentence.text for sentence in found.sentences) == written(model, TEXTS[:2])
    assert all(sentence.certified for sentence in found.sentences)


@pytest.mark.parametrize("family", ["bert", "roberta"])
@pytest.mark.parametrize("secret", [1, 4])
def test_what_a_client_hid_is_read_where_it_was_predicted(family: str, secret: int) -> None:
    model = wide(family, "masked-lm")
    update = Client(model, ("batch_size",), client="fedsgd:mask=0.3").update(TEXTS[:1], None, secret_of(secret))
    (found,) = attack(update, model, "exact")
    assert [sentence.text for sentence in found.sentences] == written(model, TEXTS[:1])
    assert [sentence.certified for sentence in found.sentences] == [True]
    assert found.labels is None


def test_without_the_head_hidden_tokens_are_left_out_and_nothing_is_certified() -> None:
    """The text as it was read may differ from the text as it was written, and only the output layer says where."""
    model = wide("bert", "masked-lm")
    client = Client(model, ("batch_size",), client="fedsgd:mask=0.3", observe="transformer")
    update = client.update(TEXTS[:1], None, secret_of(1))
    (found,) = attack(update, model, "exact")
    read = as_read(model, secret_of(1))
    assert [sentence.tokens for sentence in found.sentences] == [model.content(row) for row in read.sentences()]
    assert not any(sentence.certified for sentence in found.sentences)
    assert [sentence.lost for sentence in found.sentences] == [sum(map(model.lost, read.sentences()))]


def as_read(model: TextModel, secret: object) -> Batch:
    from gradleak.core.secret import Secret, generator

    assert isinstance(secret, Secret)
    drawn = generator(secret.child("targets"))
    return model.goal.examples(model, TEXTS[:1], None, ClientRule(mask=0.3), drawn)[0]
