"""Spans, their noise, and what is read off them, on matrices whose truth is known."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import TEXTS, TOLD, tiny_model

from gradleak import Client
from gradleak.attacks.evidence.hints import hints
from gradleak.attacks.evidence.lengths import longest_sentence
from gradleak.attacks.evidence.noise import noise_level, tail_level
from gradleak.attacks.spans.candidates import TOLERANCE, Membership
from gradleak.attacks.spans.spans import span_of
from gradleak.attacks.spans.unmix import embedding_rows, unmix


@settings(deadline=None, max_examples=40)
@given(
    tokens=st.integers(1, 20),
    rows=st.integers(24, 60),
    width=st.integers(28, 60),
    noise=st.sampled_from([1e-9, 1e-7, 1e-6]),
    seed=st.integers(0, 10_000),
)
def test_true_inputs_fit_and_others_do_not(tokens: int, rows: int, width: int, noise: float, seed: int) -> None:
    """Whatever the noise, true inputs are within what it explains, and random ones far outside."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    inputs = normal(tokens, width)
    matrix = normal(rows, tokens) @ inputs
    span = span_of([matrix + noise * matrix.norm() / (rows * width) ** 0.5 * normal(rows, width)])
    assert span is not None
    assert span.rank == tokens
    assert bool((span.distances(inputs) <= TOLERANCE * span.floors(inputs)).all())
    others = normal(8, width)
    assert bool((span.distances(others) > TOLERANCE * span.floors(others)).all())
    fits = Membership(span)(torch.cat([inputs, others]).float())
    assert fits.tolist() == [True] * tokens + [False] * 8


@pytest.mark.parametrize("shape", [(30, 20), (20, 30)])
def test_a_full_matrix_has_no_span(shape: tuple[int, int]) -> None:
    assert span_of([torch.randn(*shape, generator=torch.Generator().manual_seed(0))]) is None
    assert span_of([torch.zeros(*shape)]) is None


def test_small_matrices_are_not_lost_beside_large_ones() -> None:
    """Two gradients of one input, one a million times larger: the span has the directions of both."""
    generator = torch.Generator().manual_seed(0)
    one, two = (torch.randn(3, 40, generator=generator, dtype=torch.float64) for _ in range(2))
    left = torch.randn(50, 3, generator=generator, dtype=torch.float64)
    span = span_of([1e6 * left @ one, left @ two])
    assert span is not None
    assert span.rank == 6


def test_something_taken_out_keeps_scales_and_noise() -> None:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(6, 40, generator=generator, dtype=torch.float64)
    signals = torch.randn(50, 6, generator=generator, dtype=torch.float64)
    noisy = signals @ inputs + 1e-6 * torch.randn(50, 40, generator=generator, dtype=torch.float64)
    before = span_of([noisy])
    left = span_of([noisy - signals[:, :4] @ inputs[:4]], before)
    assert before is not None
    assert left is not None
    assert (before.rank, left.rank, left.scales) == (6, 2, before.scales)
    assert span_of([noisy - signals @ inputs], before) is None


@settings(deadline=None, max_examples=15)
@given(rank=st.integers(0, 10), level=st.sampled_from([1e-5, 1e-3, 1.0]), seed=st.integers(0, 1000))
def test_noise_is_read_off_the_tail(rank: int, level: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    signal = torch.randn(120, rank, generator=generator) @ torch.randn(rank, 90, generator=generator)
    noisy = signal * level * 3 + level * torch.randn(120, 90, generator=generator)
    assert tail_level(torch.linalg.svdvals(noisy), noisy.shape) == pytest.approx(level, rel=0.1)


def test_noise_level_of_an_update() -> None:
    model = tiny_model("bert", "classification", layers=4, width=128)
    assert noise_level(Client(model).update(TEXTS[:1], [1]), model) == 0
    noisy = Client(model, defenses=["noise:sigma=0.05"]).update(TEXTS[:1], [1])
    assert noise_level(noisy, model) == pytest.approx(0.05, rel=0.1)


@settings(deadline=None, max_examples=10)
@given(count=st.integers(2, 8), seed=st.integers(0, 1000))
def test_unmixing_finds_a_permutation(count: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    words = torch.randn(count, 40, generator=generator)
    order = torch.randperm(count, generator=generator)
    shares = unmix(words, words[order], torch.ones(count, count, dtype=torch.bool))
    assert order[torch.arange(count)].tolist() == shares.argmax(dim=0).tolist()
    assert torch.allclose(shares.sum(dim=1), torch.ones(count, dtype=torch.float64))


def test_a_layer_that_sees_sums_tells_the_rows_of_both_tables() -> None:
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


def test_the_rounding_that_a_peeled_sentence_leaves_is_not_taken_for_another() -> None:
    generator = torch.Generator().manual_seed(0)
    gone, left = (torch.randn(40, 5, generator=generator).double() for _ in range(2))
    seen = torch.randn(10, 30, generator=generator).double()
    noise = 1e-9 * torch.randn(40, 30, generator=generator).double()
    before = span_of([gone @ seen[:5] + left @ seen[5:] + noise])
    after = span_of([1e-6 * gone @ seen[:5] + left @ seen[5:] + noise], before, narrow=True)
    assert before is not None
    assert after is not None
    assert (before.rank, after.rank) == (10, 5)


def test_hints_name_the_tokens_under_noise() -> None:
    """Noise that leaves no proof still leaves the true tokens among the likeliest at their places."""
    model = tiny_model("bert", "classification", layers=4, width=128)
    update = Client(model, TOLD, defenses=["noise:sigma=0.003"]).update(TEXTS[:1], [1])
    row = model.encode(TEXTS[:1]).sentences()[0]
    found = hints(update, model, len(row), 1, keep=10)
    assert found is not None
    places = range(1, len(row) - 1)
    assert sum(row[place] in found.places[place].tolist() for place in places) >= 0.7 * len(places)
    assert longest_sentence(update, model) == len(row)
