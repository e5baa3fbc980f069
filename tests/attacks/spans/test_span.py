"""Spans and their noise, on matrices whose truth is known."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradleak.attacks.spans.candidates import Membership
from gradleak.attacks.spans.spans import span_of


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
    assert bool((span.distances(inputs) <= span.limits(inputs)).all())
    others = normal(8, width)
    assert bool((span.distances(others) > span.limits(others)).all())
    fits = Membership(span)(torch.cat([inputs, others]).float())
    assert fits.tolist() == [True] * tokens + [False] * 8


@pytest.mark.parametrize("size", [0.0, 1e-16])
def test_dimensions_without_anything_do_not_hide_the_rank(size: float) -> None:
    """Norms of real models have weights of zero (Gemma 3): the spectrum falls from rounding to nothing there."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(5, 40, generator=generator)
    inputs[:, [7, 30]] *= size
    span = span_of([torch.randn(60, 5, generator=generator) @ inputs])
    assert span is not None
    assert span.rank == 5
    assert bool((span.distances(inputs) <= span.limits(inputs)).all())
    assert bool((span.distances(torch.randn(8, 40, generator=generator)) > 0.5).all())
    both = torch.cat([span.basis, span.complement])
    torch.testing.assert_close(both @ both.T, torch.eye(38, dtype=torch.float64))


@pytest.mark.parametrize("outside", [None, 1])
def test_rounding_that_is_small_in_a_small_dimension_does_not_hide_the_rank(outside: int | None) -> None:
    """Its own spectrum fell farther there than from inputs to rounding: a rank of 39 where 34 states were read."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    sizes = torch.ones(40, dtype=torch.float64)
    sizes[7] = 1e-6
    matrix = normal(120, 34) @ normal(34, 40)
    span = span_of([(matrix + 1e-3 * normal(120, 40)) * sizes], outside=outside)
    assert span is not None
    assert span.rank == 34


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


def test_the_rounding_that_a_removed_sentence_leaves_is_not_taken_for_another() -> None:
    generator = torch.Generator().manual_seed(0)
    gone, left = (torch.randn(40, 5, generator=generator).double() for _ in range(2))
    seen = torch.randn(10, 30, generator=generator).double()
    noise = 1e-9 * torch.randn(40, 30, generator=generator).double()
    before = span_of([gone @ seen[:5] + left @ seen[5:] + noise])
    after = span_of([1e-6 * gone @ seen[:5] + left @ seen[5:] + noise], before, narrow=True)
    assert before is not None
    assert after is not None
    assert (before.rank, after.rank) == (10, 5)
