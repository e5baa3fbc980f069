"""The volume of a gradient: least without the sentences that made it, also with more tokens than dimensions."""

from __future__ import annotations

import random

import pytest
import torch
from tiny import tiny_model

from gradleak import Client, TextModel
from gradleak.attacks.crowded.volume import Batches, Volume, watched
from gradleak.attacks.soft.rehearsal import gradient_of
from gradleak.data.texts import read_data
from gradleak.updates.update import Update


@pytest.fixture(scope="module")
def model() -> TextModel:
    return tiny_model("llama", "causal-lm", layers=4, width=32)


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return [row.text for row in read_data()][:6]


@pytest.fixture(scope="module")
def update(model: TextModel, texts: list[str]) -> Update:
    return Client(model).update(texts)


def rows_of(model: TextModel, texts: list[str]) -> list[tuple[int, ...]]:
    return [tuple(row) for row in model.encode(texts).sentences()]


def test_products_are_the_gradient_that_autograd_makes(model: TextModel, texts: list[str]) -> None:
    rows = rows_of(model, texts[:3])
    (group,) = watched(model, model.parameters())
    for row, ((states, slopes),) in zip(rows, Batches(model, [group]).products(rows), strict=True):
        own = gradient_of(model, [row], [part.weight_name for part in group])
        wanted = torch.cat([part.of(own[part.weight_name]) for part in group]).double() * (len(row) - 1)
        assert torch.allclose(slopes.T @ states, wanted, rtol=1e-3, atol=1e-6 * float(wanted.abs().max()))


def test_gains_are_differences_of_log_determinants(model: TextModel, texts: list[str], update: Update) -> None:
    rows = rows_of(model, texts)
    groups = watched(model, update.tensors)
    volume = Volume.of(model, update.tensors, groups)
    volume.weight = 1 / sum(len(row) - 1 for row in rows)
    products = Batches(model, groups).products(rows)
    for own, gain in zip(products, volume.gains(products), strict=True):
        (states, slopes), whole = own[0], volume.whole[0]
        left = whole - volume.weight * slopes.T @ states
        before, after = (torch.linalg.slogdet(each.T @ each).logabsdet for each in (whole, left))
        assert gain == pytest.approx(float(before - after), rel=1e-3, abs=1e-3)


def test_the_right_sentence_gains_most(model: TextModel, texts: list[str], update: Update) -> None:
    rows, chance = rows_of(model, texts), random.Random(0)
    assert sum(len(row) - 1 for row in rows) > model.width  # or spans would do
    groups = watched(model, update.tensors)
    volume, batches = Volume.of(model, update.tensors, groups), Batches(model, groups)
    volume.weight = 1 / sum(len(row) - 1 for row in rows)
    bag = sorted({token for row in rows for token in row})
    for row in rows:
        edited = [row[:-1]]
        for place in range(1, len(row)):
            token = chance.choice([each for each in bag if each != row[place]])
            edited.append((*row[:place], token, *row[place + 1 :]))
        right, *wrong = volume.gains(batches.products([row, *edited]))
        assert right > max(wrong)
        assert right > 0


def test_the_weight_is_one_over_the_number_of_predictions(model: TextModel, texts: list[str], update: Update) -> None:
    rows = rows_of(model, texts)
    groups = watched(model, update.tensors)
    volume, batches = Volume.of(model, update.tensors, groups), Batches(model, groups)
    products = batches.products(rows)
    volume.weigh(products[:2])
    for row, own in zip(rows[:5], products, strict=False):
        volume.add(row, own)
    volume.reweigh()
    assert round(1 / volume.weight) == sum(len(row) - 1 for row in rows)


def test_what_is_put_back_is_there_again(model: TextModel, texts: list[str], update: Update) -> None:
    rows = rows_of(model, texts)
    groups = watched(model, update.tensors)
    volume = Volume.of(model, update.tensors, groups)
    volume.weight = 1 / sum(len(row) - 1 for row in rows)
    products = Batches(model, groups).products(rows)
    before = volume.gains(products)
    assert not volume.rank_shows
    for row, own in zip(rows[1:], products[1:], strict=True):
        volume.add(row, own)
    assert volume.rank_shows
    for row in rows[1:]:
        volume.put_back(row)
    assert volume.gains(products) == pytest.approx(before, rel=1e-6, abs=1e-6)
