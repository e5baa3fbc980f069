"""Which tokens a batch had, and how often."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny import TEXTS, tiny_model

from gradleak import Client
from gradleak.attacks.evidence.tokens import _counts, tokens_of


@pytest.mark.parametrize("spans", [True, False])
def test_a_tied_embedding_still_shows_its_tokens(spans: bool) -> None:
    model = tiny_model("gpt2", "causal-lm", layers=3, width=32)
    truth = {token for sentence in model.encode(TEXTS).sentences() for token in sentence}
    found = tokens_of(model, Client(model).update(TEXTS), spans=spans)
    assert len(truth & set(found.scores)) >= 0.9 * len(truth)
    assert found.counts
    assert set(found.counts) <= set(found.scores)


def test_frozen_embeddings_hide_the_rows_but_not_the_span() -> None:
    model = tiny_model("gpt2", "causal-lm", layers=3, width=32)
    update = Client(model, defenses=["frozen"]).update(TEXTS[:1])
    (sentence,) = model.encode(TEXTS[:1]).sentences()
    assert not tokens_of(model, update, spans=False).scores
    assert set(tokens_of(model, update).scores) == set(sentence[:-1])


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=6))
def test_counts_are_in_the_ratio_of_the_pulls(pulls: list[float]) -> None:
    """A single occurrence is never taken for less than the smallest pull, so counts stay within the ratios."""
    counts = _counts(torch.tensor(pulls), list(range(len(pulls))), None)
    assert all(1 <= counts[token] <= round(own / min(pulls)) + 1 for token, own in enumerate(pulls))
