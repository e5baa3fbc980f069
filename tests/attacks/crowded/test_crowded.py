"""Sentences of a full update with more tokens than dimensions: taken out until the rest is exact, and all proved."""

from __future__ import annotations

import pytest
import torch
from tiny import tiny_model

from gradleak import Client, TextModel, attack
from gradleak.attacks.crowded.leverage import leverages, spots_of
from gradleak.attacks.crowded.reading import Reading, crowded, held, learned_in
from gradleak.core.budget import Budget
from gradleak.data.texts import read_data
from gradleak.updates.update import Update

TEXTS = [row.text for row in read_data()][:6]


@pytest.fixture(scope="module")
def model() -> TextModel:
    return tiny_model("llama", "causal-lm", layers=8, width=96)


@pytest.fixture(scope="module")
def update(model: TextModel) -> Update:
    return Client(model).update(TEXTS)


@pytest.fixture(scope="module")
def rows(model: TextModel) -> list[tuple[int, ...]]:
    return [tuple(row) for row in model.encode(TEXTS).sentences()]


def test_more_tokens_than_dimensions_are_a_crowd(model: TextModel, update: Update) -> None:
    assert crowded(model, update)
    assert not crowded(model, Client(model).update(TEXTS[:1]))  # its rank shows
    assert not crowded(model, Client(model, defenses=["noise:sigma=0.1"]).update(TEXTS))  # noise hides it
    assert not crowded(tiny_model("gpt2", "classification"), update)


def test_states_of_the_batch_have_less_leverage(
    model: TextModel, update: Update, rows: list[tuple[int, ...]]
) -> None:
    from gradleak.attacks.soft.continuations import branches

    spots = spots_of(model, update.tensors)
    levers = leverages(spots, update.tensors)
    row = rows[0]
    wrong = [token for token in rows[1] if token not in row][:4]
    asked = [[row[place + 1], *wrong] for place in range(len(row) - 2)]
    sizes = levers.of(branches(model, spots, row[:-2], asked)).mean(dim=-1).view(len(asked), -1)
    assert float((sizes[:, :1] < sizes[:, 1:]).float().mean()) > 0.9


def reading_of(model: TextModel, update: Update, rows: list[tuple[int, ...]]) -> Reading:
    bag = sorted({token for row in rows for token in row})
    learned = learned_in(model, update, rows, rows[:2], 0)
    assert learned is not None
    return Reading(model, update, bag, len(rows), 64, learned, Budget())


def taken(reading: Reading, sentences: list[tuple[int, ...]]) -> Reading:
    for tokens, products in zip(sentences, reading.batches.products(sentences), strict=True):
        reading.volume.add(tokens, products)
        reading.found.sentences[tokens] = 1.0
    return reading


def test_what_was_taken_out_wrongly_is_found_and_put_back(
    model: TextModel, update: Update, rows: list[tuple[int, ...]]
) -> None:
    reading = reading_of(model, update, rows)
    reading.volume.weight = 1 / sum(len(row) - 1 for row in rows)
    wrong = (*rows[3][:-3], rows[0][4], rows[0][5])
    assert taken(reading, [*rows[:3], wrong])._finish()
    assert set(reading.found.sentences) == set(rows)
    assert reading.found.proved


def test_once_few_tokens_are_left_the_others_are_followed(
    model: TextModel, update: Update, rows: list[tuple[int, ...]]
) -> None:
    """What was taken out rightly is proved by the tokens that are gone; what was not is put back, the rest read."""
    reading = reading_of(model, update, rows)
    reading.volume.weight = 1 / sum(len(row) - 1 for row in rows)
    wrong = (*rows[3][:-1], rows[0][4])
    told: list[int] = []
    assert taken(reading, [*rows[:2], wrong])._follow(lambda found: told.append(len(found.certain)))
    assert set(reading.found.sentences) == set(rows) == set(reading.found.certain)
    assert reading.found.proved
    assert told[0] == 2


def test_nothing_is_proved_while_a_sentence_lacks_its_end(
    model: TextModel, update: Update, rows: list[tuple[int, ...]]
) -> None:
    reading = reading_of(model, update, rows)
    reading.volume.weight = 1 / sum(len(row) - 1 for row in rows)
    assert reading._nothing_left(rows)
    assert not reading._nothing_left([*rows[1:], rows[0][:-1]])
    assert not reading._nothing_left(rows[1:])


def test_the_attack_proves_all_sentences(model: TextModel, update: Update) -> None:
    (found,) = attack(update, model, "soft", seed=0)
    right = {sentence.text for sentence in found.sentences if sentence.certified}
    assert right == set(TEXTS)
    assert len(found.sentences) == len(TEXTS)


def test_time_that_is_over_leaves_what_was_found(model: TextModel, update: Update) -> None:
    (found,) = attack(update, model, "soft", seed=0, budget=0.01)
    assert not any(sentence.certified and sentence.text not in TEXTS for sentence in found.sentences)


def test_only_matrices_of_layers_are_looked_at(model: TextModel, update: Update) -> None:
    names = held(model, update.tensors)
    assert names
    assert all(torch.is_tensor(update.tensors[name]) and update.tensors[name].dim() == 2 for name in names)


def test_auto_asks_soft_where_no_span_shows(model: TextModel, update: Update) -> None:
    (found,) = attack(update, model, "auto", seed=0)
    assert {sentence.text for sentence in found.sentences if sentence.certified} == set(TEXTS)
    assert {sentence.stage for sentence in found.sentences} == {"soft"}
