"""Sentences beyond the rank limit, around tokens that occur once."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import tiny_model, wide_model

from gradleak import Client, TextModel, attack
from gradleak.attacks.exact.anchored import can_anchor, explains_rows
from gradleak.attacks.exact.relaxed import places_of, relax
from gradleak.attacks.spans.certify import mixed_spans
from gradleak.attacks.spans.first_layer import FirstLayer, energies, flipped_energies
from gradleak.core.budget import Budget
from gradleak.data.texts import read_data

TEXTS = [
    "The loan was refused.",
    "Rosa moved to ward six.",
    "The flight was late.",
    "Rosa was late.",
    "The ward moved.",
]


def solved(model: TextModel) -> tuple[FirstLayer, list[list[int]]]:
    """The first layer by the gradient of sentences, and these as numbers of tokens."""
    rows = model.encode(TEXTS).sentences()
    tokens = torch.tensor(sorted({token for row in rows for token in row}))
    update = Client(model, known=()).update(TEXTS, [0, 1, 0, 1, 1])
    embedded = update.tensors[model.adapter.parameter_of(model.adapter.token_embedding)][tokens]
    layer = FirstLayer(model, update.tensors, tokens, embedded, max(map(len, rows)))
    number = {int(token): place for place, token in enumerate(tokens)}
    return layer, [[number[token] for token in row] for row in rows]


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert"])
def test_a_token_that_occurs_once_tells_its_sentence(family: str) -> None:
    model = wide_model(family, "classification")
    layer, rows = solved(model)
    every = [number for row in rows for number in row]
    tried = 0
    for row in rows:
        for position, number in enumerate(row):
            if every.count(number) > 1:
                continue
            anchor, places = layer.anchor(number, position), torch.arange(len(row))
            picks = torch.tensor([row, [*row[:1], *([rows[0][2]] * (len(row) - 2)), *row[-1:]]])
            picks[1, position] = number
            found, _ = energies(anchor, places, picks, torch.ones_like(picks, dtype=torch.bool))
            assert float(found[0]) < 1e-7
            assert torch.equal(picks[0], picks[1]) or float(found[1]) > 1e-4
            tried += 1
    assert tried > 4


@given(seed=st.integers(0, 10**6))
@settings(max_examples=10, deadline=None)
def test_flips_have_the_energies_of_flipped_sentences(seed: int) -> None:
    model = tiny_model("bert", "classification", width=64)
    layer, _ = solved(model)
    generator = torch.Generator().manual_seed(seed)
    anchor, places = layer.anchor(3, 2), torch.arange(layer.length)
    picks = torch.randint(len(layer.tokens), (3, layer.length), generator=generator)
    live = places < torch.tensor([[layer.length], [5], [4]])
    choices = torch.randint(len(layer.tokens), (layer.length, 4), generator=generator)
    _, multiples = energies(anchor, places, picks, live)
    flipped = flipped_energies(anchor, picks, live, multiples, choices)
    for row in range(3):
        for place in range(int(live[row].sum())):
            for number, choice in enumerate(choices[place]):
                other = picks[row : row + 1].clone()
                other[0, place] = choice
                least, _ = energies(anchor, places, other, live[row : row + 1])  # by the multiple that fits best
                assert float(flipped[row, place, number]) > float(least[0]) * (1 - 1e-3) - 1e-5


def test_shares_find_a_sentence_from_nothing_but_its_anchor() -> None:
    model = wide_model("bert", "classification")
    layer, rows = solved(model)
    every = [number for row in rows for number in row]
    first, end, found = rows[0][0], rows[0][-1], 0
    once = [(row, at) for row in rows for at, number in enumerate(row) if every.count(number) == 1]
    for row, position in once:
        weights = torch.ones(layer.length, len(layer.tokens))
        weights[:, [first, row[position]]] = weights[0] = weights[position] = 0
        weights[: position + 1, end] = 0
        weights[[0, position], [first, row[position]]] = 1
        places = places_of(weights, torch.zeros_like(weights, dtype=torch.bool), end)
        assert torch.allclose(places.sums @ places.shares, torch.eye(layer.length + 1)[-1], atol=1e-5)
        places, left = relax(layer.anchor(row[position], position), places, layer.anchor, Budget())
        likely = places.shares > 0.5
        told = dict(zip(places.positions[likely].tolist(), places.tokens[likely].tolist(), strict=True))
        found += left < 1e-5 and told == dict(enumerate(row))
    assert found >= len(once) // 2


def test_more_tokens_than_dimensions_are_read_and_proved() -> None:
    model = tiny_model("bert", "classification", layers=4, width=96)
    words, draw = sorted({word for row in read_data() for word in row.text.split()})[:50], random.Random(0)
    texts = [" ".join(draw.sample(words, 4)) for _ in range(16)]
    rows = model.encode(texts).sentences()
    assert sum(map(len, rows)) > 96 > len({token for row in rows for token in row}) + max(map(len, rows))
    update = Client(model, known=("batch_size",)).update(texts, [number % 2 for number in range(len(texts))])
    assert not mixed_spans(model, update.tensors)  # there is no span to search in
    (found,) = attack(update, model, "exact", budget=60)
    truth = [model.content(row) for row in rows]
    assert sorted(sentence.tokens for sentence in found.sentences) == sorted(truth)
    assert all(sentence.certified for sentence in found.sentences)
    assert not found.notes


def test_rows_prove_the_right_sentence_and_label_only() -> None:
    model = wide_model("bert", "classification").to_float64()
    update = Client(wide_model("bert", "classification"), known=()).update(TEXTS[:2], [0, 1])
    right, other = model.encode(TEXTS[:2]).sentences()
    names = [name for name in update.tensors if "layer.0" in name or "embeddings.weight" in name]
    tensors = {name: update.tensors[name].double() for name in names}
    anchor = next(token for token in right if token not in other)
    proof = explains_rows(model, tensors, right, anchor)
    assert proof is not None
    assert (proof[0].label, round(1 / proof[0].share), proof[1].holds) == (0, 2, True)
    wrong = [*right[:-2], other[1], right[-1]]
    assert explains_rows(model, tensors, wrong, anchor) is None


def test_layers_that_compute_otherwise_are_left_to_the_spans() -> None:
    for family, can in (("bert", True), ("mpnet", False), ("albert", False), ("modernbert", False)):
        model = wide_model(family, "classification")
        update = Client(model, known=()).update(TEXTS[:2], [0, 1])
        assert can_anchor(model, update.tensors) is can
