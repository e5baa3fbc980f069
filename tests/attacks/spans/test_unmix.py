"""Which token stood where, by the rows of both embeddings."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradleak.attacks.spans.spans import span_of
from gradleak.attacks.spans.unmix import LEARNING_RATE, STEPS, embedding_rows, unmix


@settings(deadline=None, max_examples=10)
@given(count=st.integers(2, 8), seed=st.integers(0, 1000))
def test_unmixing_finds_a_permutation(count: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    words = torch.randn(count, 40, generator=generator)
    order = torch.randperm(count, generator=generator)
    shares = unmix(words, words[order], torch.ones(count, count, dtype=torch.bool))
    assert order[torch.arange(count)].tolist() == shares.argmax(dim=0).tolist()
    assert torch.allclose(shares.sum(dim=1), torch.ones(count, dtype=torch.float64))


@settings(deadline=None, max_examples=5)
@given(st.integers(2, 8), st.integers(2, 8), st.integers(0, 1000))
def test_shares_are_those_of_torchs_optimiser(count: int, places: int, seed: int) -> None:
    """By autograd and Adam, as slowly as can be; some pairs are impossible, and some tokens have no place at all."""
    generator = torch.Generator().manual_seed(seed)
    words, rows = (torch.randn(n, 12, generator=generator, dtype=torch.float64) for n in (count, places))
    allowed = torch.rand(count, places, generator=generator) < 0.6
    allowed[0] = False
    forbidden = ~allowed & allowed.any(dim=1, keepdim=True)
    logits = torch.zeros(count, places, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([logits], lr=LEARNING_RATE)
    for _ in range(STEPS):
        shares = logits.masked_fill(forbidden, -1e9).softmax(dim=1)
        optimizer.zero_grad()
        ((shares.T @ words - rows).square().sum() / rows.square().sum()).backward()
        optimizer.step()
    expected = logits.detach().masked_fill(forbidden, -1e9).softmax(dim=1) * allowed.any(dim=1, keepdim=True)
    torch.testing.assert_close(unmix(words, rows, allowed), expected, rtol=1e-5, atol=1e-7)


def test_a_layer_that_sees_sums_shows_the_rows_of_both_embeddings() -> None:
    """Three tokens at three positions, in an order that only the signals know."""
    generator = torch.Generator().manual_seed(0)
    words, positions, signals = (torch.randn(3, 30, generator=generator).double() for _ in range(3))
    inputs, order = words[:, None] + positions, torch.tensor([2, 0, 1])
    matrix = signals.T @ inputs[torch.arange(3), order]
    # Rows are those of the span's unit-norm matrix, and every pair is in the span of all sums.
    whole = span_of([torch.randn(30, 9, generator=generator).double() @ inputs.flatten(0, 1)])
    assert whole is not None
    own, where = embedding_rows(whole, [matrix], inputs, torch.ones(3, 3, dtype=torch.bool))
    assert torch.allclose(own * whole.scales[0], signals)
    assert torch.allclose(where[order] * whole.scales[0], signals)
