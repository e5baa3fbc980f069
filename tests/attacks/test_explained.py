"""What share of an update the sentences that were read back explain."""

import pytest
import torch
from tiny import tiny_model

from gradleak import Client, attack
from gradleak.attacks.base import Reconstruction, Sentence
from gradleak.attacks.explained import _left_over, explained_share
from gradleak.core.budget import Budget

TEXTS = ["the old man lost his keys", "a small dog ran home", "we meet at nine", "rain fell on the town"]


def answered(model, texts, labels=None):
    rows = [model.content(row) for row in model.encode(texts).sentences()] if texts else []
    sentences = [Sentence(text=text, tokens=row, confidence=1) for text, row in zip(texts, rows, strict=True)]
    return Reconstruction(sentences=sentences, labels=labels)


@pytest.mark.parametrize(("family", "task"), [("bert", "classification"), ("llama", "causal-lm")])
def test_the_more_sentences_are_known_the_more_is_explained(family, task):
    model = tiny_model(family, task, width=32)
    labels = [0, 1, 0, 1] if task == "classification" else None
    update = Client(model).update(TEXTS, labels=labels)

    def share(texts, chosen=None):
        return explained_share(update, model, answered(model, texts, chosen), Budget())

    parts = [share(TEXTS[:count], labels and labels[:count]) for count in (1, 2, 3, 4)]
    assert parts == sorted(parts)
    assert parts[0] < 0.9
    assert parts[-1] == pytest.approx(1, abs=1e-4)
    assert share(["nobody knows the price of gold"] * 4, labels and [1, 1, 0, 0]) < parts[0]
    assert share(TEXTS) == pytest.approx(1, abs=1e-4)  # labels that are not told are tried


def test_attacks_say_it_and_a_control_does_not_look():
    model = tiny_model("llama", "causal-lm", width=32)
    update = Client(model).update(TEXTS[:1])
    (found,) = attack(update, model, "exact")
    assert found.explained == pytest.approx(1, abs=1e-4)
    (blind,) = attack(update, model, "control")
    assert blind.explained is None


def test_nothing_is_said_of_no_sentences_and_of_labels_that_cannot_be_tried():
    model = tiny_model("bert", "classification")
    update = Client(model).update(TEXTS[:1], labels=[1])
    assert explained_share(update, model, answered(model, []), Budget()) is None
    numbers = tiny_model("bert", "regression")
    update = Client(numbers).update(TEXTS[:1], labels=[0.5])
    assert explained_share(update, numbers, answered(numbers, TEXTS[:1]), Budget()) is None


def test_rows_that_differ_by_rounding_explain_no_more_than_one():
    """As a sentence's gradients under two classes do, which are opposite."""
    generator = torch.Generator().manual_seed(0)
    row, other, noise = torch.randn(3, 100, dtype=torch.float64, generator=generator)
    pair = torch.stack([row, 1e-7 * noise - row])
    assert _left_over(row + other, pair) == pytest.approx(_left_over(row + other, row[None]), rel=1e-6)
