"""Sentences from adapters of a lower rank than the batch has tokens: proved, taken out, and the rest read."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny import TEXTS, adapted_model, tiny_model

import gradleak.attacks.soft.attack as soft
from gradleak import Client, GradleakError, TextModel, attack, load_model
from gradleak.attacks.evidence.sparse import sparse_tokens
from gradleak.attacks.soft.coefficients import Coefficients
from gradleak.attacks.soft.predictions import COMPARED
from gradleak.attacks.soft.reading import without
from gradleak.core.budget import Budget
from gradleak.core.progress import SILENT

pytest.importorskip("peft")


@pytest.fixture(scope="module")
def model() -> TextModel:
    return adapted_model(layers=8, width=96, rank=14)


def coefficients_of(model: TextModel, texts: list[str]) -> Coefficients:
    tensors = Client(model).update(texts).tensors
    found = sparse_tokens(model, tensors, Budget())
    assert found is not None
    assert found.certified
    return Coefficients(model, tensors, sorted(found.sizes))


def test_all_sentences_beyond_the_rank_are_proved(model: TextModel) -> None:
    (found,) = attack(Client(model).update(TEXTS), model, "soft", closer=64, rehearsals=1, beams=24, length=16)
    assert {sentence.text for sentence in found.sentences if sentence.certified} == set(TEXTS)
    assert all(sentence.certified for sentence in found.sentences)


def test_only_the_right_sentence_is_proved(model: TextModel) -> None:
    coefficients = coefficients_of(model, TEXTS)
    rows = model.encode(TEXTS).sentences()
    for row in rows:
        assert coefficients.match(row).proved
        assert not coefficients.match(row[:-1]).proved
        for place in range(1, len(row)):
            for token in {rows[0][2], rows[1][-1], rows[2][3]} - {row[place]}:
                assert not coefficients.match([*row[:place], token, *row[place + 1 :]]).proved


def test_the_weight_is_that_of_the_mean(model: TextModel) -> None:
    rows = model.encode(TEXTS).sentences()
    predicted = sum(len(row) - 1 for row in rows)
    match = coefficients_of(model, TEXTS).match(rows[0])
    assert match.weight == pytest.approx(1 / predicted, rel=1e-3)


def test_without_all_sentences_nothing_is_left(model: TextModel) -> None:
    left = dict(Client(model).update(TEXTS).tensors)
    rows = model.encode(TEXTS).sentences()
    size = torch.stack([tensor.norm() for tensor in left.values()]).norm()
    for row in rows:
        left = without(model, left, row, 1 / sum(len(each) - 1 for each in rows))
    assert torch.stack([tensor.norm() for tensor in left.values()]).norm() < 1e-4 * size


def test_classifiers_are_refused() -> None:
    classifier = tiny_model("bert", "classification")
    update = Client(classifier).update(TEXTS[:1], [0])
    with pytest.raises(GradleakError, match="causal language model"):
        attack(update, classifier, "soft")


def test_an_update_without_layers_says_why() -> None:
    plain = tiny_model("llama", "causal-lm")
    update = Client(plain, observe="head").update(TEXTS[:1])
    (found,) = attack(update, plain, "soft", rehearsals=1)
    assert not found.sentences
    assert found.reasons


def test_what_public_text_shows_serves_all_defences(model: TextModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rehearsal takes most of a short attack's time, so no part of it is done twice for the same model."""
    made: list[str] = []

    def counted(name: str) -> None:
        original = getattr(soft, name)

        def watched(*args: Any) -> Any:
            made.append(name)
            return original(*args)

        monkeypatch.setattr(soft, name, watched)

    counted("background")
    counted("gradient_of")
    monkeypatch.setattr(soft, "_STATES", soft._Kept())
    monkeypatch.setattr(soft, "_SPREADS", soft._Kept())
    for defenses in ([], ["wire:format=float16"]):
        made.clear()
        update = Client(model, defenses=defenses).update(TEXTS[:1])
        attack(update, model, "soft", rehearsals=1, beams=4, length=4)
    assert made == ["gradient_of"] * COMPARED


def test_a_rehearsal_without_time_still_learns_from_one_batch(model: TextModel) -> None:
    update, method = Client(model, known=("batch_size",)).update(TEXTS[:1]), soft.Soft()
    assert method._learned(update, model, 9, Budget(seconds=0), SILENT) is not None


def test_a_budget_ends_it(model: TextModel) -> None:
    (found,) = attack(Client(model).update(TEXTS), model, "soft", budget="0.2s", rehearsals=50)
    assert found.status == "budget-exhausted"
    assert found.bag


def test_in_the_first_round_nothing_is_made_up() -> None:
    """A model that knows no language is led by chance alone; what other layers do not confirm is not given."""
    below = tiny_model("llama", "causal-lm", layers=6, width=64)
    lora = "r=8,targets=query+value,b=0"
    fresh = load_model(below.module, tokenizer=below.tokenizer, task="causal-lm", lora=lora)
    (found,) = attack(Client(fresh).update(TEXTS), fresh, "soft", beams=4, rehearsals=1, length=16)
    assert not found.bag
    assert not found.sentences
    assert "tokens-missing" in [reason.kind for reason in found.reasons]


def test_auto_takes_it_for_adapters(model: TextModel) -> None:
    (found,) = attack(Client(model).update(TEXTS[:2]), model)
    assert {sentence.text for sentence in found.sentences if sentence.certified} == set(TEXTS[:2])
