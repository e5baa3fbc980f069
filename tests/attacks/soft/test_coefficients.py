"""Coefficients of many sentences at once, against the gradients of each by plain autograd; what they are worth."""

from __future__ import annotations

import random

import pytest
import torch
from tiny import TEXTS, adapted_model, tiny_model

from gradleak import Client, TextModel
from gradleak.attacks.soft.coefficients import Coefficients, Match, portions, solvable
from gradleak.attacks.soft.likeness import LAGS, SHORTEST, examples, learn

pytest.importorskip("peft")


MODELS = {
    "full": lambda: tiny_model("llama", "causal-lm", layers=3, width=64),
    "lora": lambda: adapted_model(layers=3, width=64, rank=8),
}


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> TextModel:
    return MODELS[request.param]()


def batch(model: TextModel) -> tuple[list[list[int]], Coefficients]:
    rows = model.encode(TEXTS).sentences()
    tokens = sorted({token for row in rows for token in row[:-1]})
    tensors = Client(model).update(TEXTS).tensors
    assert solvable(model, tensors, tokens)
    return rows, Coefficients(model, tensors, tokens)


def by_autograd(model: TextModel, coefficients: Coefficients, row: list[int]) -> torch.Tensor:
    """The cosines of a sentence by its own gradient, solved as the update's is."""
    ids = torch.tensor([row])
    loss = model.loss(ids, ids=ids, mask=torch.ones_like(ids, dtype=torch.bool))
    weights = [model.parameters()[name] for name in coefficients.names]
    own = coefficients.of(dict(zip(coefficients.names, torch.autograd.grad(loss, weights), strict=True)))
    places = list(dict.fromkeys(coefficients.tokens[token] for token in row[:-1]))
    return torch.nn.functional.cosine_similarity(own[places], coefficients.update[places], dim=1)


def test_many_at_once_are_what_each_is_by_itself(model: TextModel) -> None:
    rows, coefficients = batch(model)
    asked = [*rows, *(row[:3] for row in rows), [rows[0][0], *rows[1][1:]], [*rows[2][:2], *rows[2][:4]]]
    for row, match in zip(asked, coefficients.matches(asked), strict=True):
        wanted = by_autograd(model, coefficients, row)
        torch.testing.assert_close(torch.tensor(match.cosines), wanted.float(), rtol=1e-3, atol=1e-3)
        assert match.proved == (row in rows)


def test_lags_count_what_comes_after_a_tokens_last_place(model: TextModel) -> None:
    rows, coefficients = batch(model)
    first, second = rows[0][0], rows[0][1]
    assert coefficients.match([first, second, first, second, second]).lags == (1, 0)


def test_portions_have_every_sentence_once() -> None:
    chance = random.Random(0)
    sentences = [[0] * chance.randrange(2, 600) for _ in range(50)]
    given = list(portions(sentences))
    assert sorted(number for portion in given for number in portion) == list(range(50))
    assert all(len(p) == 1 or len(p) * max(len(sentences[n]) for n in p) <= 1024 for p in given)


def test_not_solvable_without_the_first_layer_or_with_too_many_tokens(model: TextModel) -> None:
    tensors = Client(model).update(TEXTS).tensors
    upper = {name: tensor for name, tensor in tensors.items() if "layers.0." not in name}
    assert not solvable(model, upper, [1, 2])
    assert not solvable(model, tensors, list(range(64)))
    assert not solvable(model, tensors, [])


def test_right_places_are_told_from_wrong_ones(model: TextModel) -> None:
    rows, coefficients = batch(model)
    features, right = examples(coefficients, rows, random.Random(0))
    assert 0 < int(right.sum()) < len(right)
    likeness = learn(features, right)
    whole = [row for row in rows if len(row) > SHORTEST]
    strayed = [[*row[:1], *reversed(row[1:])] for row in whole]
    reaches = [
        likeness.reach(match, len(row)).value
        for row, match in zip([*whole, *strayed], coefficients.matches([*whole, *strayed]), strict=True)
    ]
    assert min(reaches[: len(whole)]) > max(reaches[len(whole) :])


def test_a_reach_ends_where_coefficients_stop_to_speak_for_a_sentence() -> None:
    likeness = learn(
        torch.tensor([[1.0, 1.0, 0.5] * (len(LAGS) + 1), [1.0, -1.0, 0.0] * (len(LAGS) + 1)], dtype=torch.float64),
        torch.tensor([True, False]),
    )
    reach = likeness.reach(Match(0.0, 0, (1.0, 0.9, -0.8, -0.9), (3, 2, 1, 0)), size=5)
    assert reach.tokens == 2
    assert reach.value > 0
    assert likeness.reach(Match(0.0, 0, (), ()), size=2).value == 0
