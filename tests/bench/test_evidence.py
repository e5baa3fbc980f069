"""Tests of single tokens, states and beginnings, asked of the truth: they hold there, and not beside it."""

from __future__ import annotations

import random

import pytest
from tiny import TEXTS, bare_update, tiny_model, wide_model

from gradleak.bench.evidence import beginnings, distances, next_tokens, summary, tied_rows


@pytest.fixture(scope="module")
def decoder():
    model = tiny_model("llama", "causal-lm", layers=4, width=128)
    rows = [list(row) for row in model.encode(TEXTS).sentences()]
    return model, bare_update(model, TEXTS), rows


def test_true_inputs_lie_in_the_span_and_true_sentences_below_the_limit():
    model = wide_model("bert", "classification")
    rows = [list(row) for row in model.encode(TEXTS[:2]).sentences()]
    cell = distances(model, bare_update(model, TEXTS[:2]), rows, random.Random(0))
    assert cell["inputs"] == sum(map(len, rows))
    assert cell["of_prediction"]["most"] < 10  # the limit of the attack
    assert cell["right"]["most"] < 1 < cell["wrong"]["least"]


def test_true_beginnings_leave_nothing_over(decoder):
    cell = beginnings(*decoder, random.Random(0))
    assert cell["tested"] > 5
    assert cell["right"]["most"] < 1e-4 < cell["wrong"]["median"]


def test_shares_name_the_next_token(decoder):
    cell = next_tokens(*decoder, random.Random(0))
    assert cell["places"] == sum(len(row) - 2 for row in decoder[2])
    assert cell["shares_first"] > cell["model_first"]  # a model that was never trained foretells nothing


def test_rows_name_tokens_that_were_there():
    model = tiny_model("gpt2", "causal-lm", layers=2, width=64)
    rows = [list(row) for row in model.encode(TEXTS).sentences()]
    cell = tied_rows(model, bare_update(model, TEXTS), rows, random.Random(0))
    assert 0 < cell["named"] <= cell["predicted"] == len({token for row in rows for token in row[1:]})
    assert cell["counts_right"] <= cell["counted"]


def test_a_summary_adds_up_counts_and_gives_ranges_of_the_rest():
    cells = [{"seed": n, "named": n, "right": {"most": n / 10}} for n in (1, 2)]
    assert summary(cells) == "2 batches: named 3; right: most 0.1 to 0.2"
