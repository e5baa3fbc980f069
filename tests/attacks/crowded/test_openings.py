"""How sentences begin, as the rows of the output layer show it; and where they end, as growing remembers it."""

from __future__ import annotations

from collections import Counter

import torch
from tiny import tiny_model

from gradleak import Client, TextModel
from gradleak.attacks.crowded.growth import Grown
from gradleak.attacks.crowded.openings import second_tokens
from gradleak.attacks.crowded.reading import Sums, held
from gradleak.attacks.soft.reading import beginnings
from gradleak.attacks.soft.rehearsal import gradient_of
from gradleak.data.texts import read_data

TEXTS = [row.text for row in read_data()][:8]


def model() -> TextModel:
    return tiny_model("llama", "causal-lm", layers=2, width=96)


def test_second_tokens_are_counted_in_the_rows_of_the_output_layer() -> None:
    tiny = model()
    rows = list(tiny.encode(TEXTS).sentences())
    bag = torch.tensor(sorted({token for row in rows for token in row}))
    public = list(tiny.encode([row.text for row in read_data()][8:24]).sentences())
    first = list(beginnings(tiny, bag))
    counts = second_tokens(tiny, Client(tiny).update(TEXTS).tensors, first, bag, public, len(rows))
    true = Counter(row[1] for row in rows)
    assert len(counts) < len(bag)
    assert len(true.keys() & counts.keys()) >= len(true) - 1


def test_without_the_output_layer_every_token_may_come_second() -> None:
    tiny = model()
    bag = torch.arange(5, 25)
    assert second_tokens(tiny, {}, [5], bag, [[5, 6, 7]], 4) == dict.fromkeys(bag.tolist(), 1.0)


def test_ends_are_remembered_at_every_place() -> None:
    grown = Grown((1, 2, 3, 4), (5.0, 2.0, -1.0), ((), ((0.5, 9),), ((1.0, 8), (0.0, 9)), ((3.0, 7),)))
    assert grown.best.tokens == (1, 2, 3)
    assert dict(grown.whole(3)) == {(1, 2, 3, 8): 8.0, (1, 2, 3, 9): 7.0, (1, 2, 3, 4, 7): 9.0}


def test_what_is_put_back_is_taken_from_the_sum() -> None:
    tiny = model()
    rows = [tuple(row) for row in tiny.encode(TEXTS[:3]).sentences()]
    names = held(tiny, tiny.parameters())
    sums = Sums(tiny, names)
    sums.of(rows)
    for chosen in (rows[:1], rows[1:]):
        made = gradient_of(tiny, chosen, names)
        own, predicted = sums.of(chosen), sum(len(row) - 1 for row in chosen)
        assert all(torch.allclose(own[name], made[name] * predicted, atol=1e-4) for name in names)
