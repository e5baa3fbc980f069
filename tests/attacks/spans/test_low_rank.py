"""Spans of low rank are those of the whole decomposition, or there is no answer."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gradleak.attacks.spans.low_rank import low_rank
from gradleak.attacks.spans.spans import _end

WIDTH = 256


def made(seed: int, rows: int, sizes: Tensor, noise: float, uneven: float = 0.0) -> Tensor:
    """A matrix of these singular values, with noise of this share on its columns, of uneven sizes."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    left, right = (torch.linalg.qr(normal(count, len(sizes))).Q for count in (rows, WIDTH))
    columns = 10 ** (-uneven * torch.rand(WIDTH, generator=generator, dtype=torch.float64))
    return (left * sizes.double()) @ right.T + noise * (rows * WIDTH) ** -0.5 * columns * normal(rows, WIDTH)


@settings(deadline=None, max_examples=15)
@given(
    rank=st.integers(1, 60),
    rows=st.integers(WIDTH + 1, 700),
    weakest=st.floats(-5, 0),
    noise=st.floats(-12, -3),
    uneven=st.sampled_from([0.0, 1.0, 3.0]),
    seed=st.integers(0, 10_000),
)
def test_an_answer_is_that_of_the_whole_decomposition(
    rank: int, rows: int, weakest: float, noise: float, uneven: float, seed: int
) -> None:
    """Over ranks, spectra and noises: the same end and, against what noise turns them by, the same directions."""
    matrix = made(seed, rows, torch.logspace(0, weakest, rank), 10**noise, uneven)
    found = low_rank(matrix, _end)
    if found is None:
        return
    _, sizes, directions = torch.linalg.svd(matrix, full_matrices=False)
    end = _end(sizes, float(sizes[0]))
    assert len(found.sizes) == end
    torch.testing.assert_close(found.sizes, sizes[:end], rtol=1e-6, atol=1e-14)
    assert found.left == pytest.approx(float(sizes[end:].norm()), rel=1e-3)
    turned = (directions[end:] @ found.directions[:end].T).norm(dim=0)
    assert bool((turned <= 0.02 * found.left * rows**-0.5 / sizes[:end]).all())
    torch.testing.assert_close(found.directions @ found.directions.T, torch.eye(WIDTH, dtype=torch.float64))


@pytest.mark.parametrize("rank", [1, 20, 40])
@pytest.mark.parametrize("uneven", [0.0, 2.0])
def test_a_few_sentences_are_answered(rank: int, uneven: float) -> None:
    found = low_rank(made(0, 600, torch.logspace(0, -2, rank), 1e-7, uneven), _end)
    assert found is not None
    assert len(found.sizes) == rank


def test_there_is_no_answer_where_the_spectrum_falls_farther_beyond_the_sketch() -> None:
    """Ten strong directions and ninety weak ones, of which the sketch does not show the end."""
    sizes = torch.cat([torch.logspace(0, -1, 10), torch.logspace(-4.2, -4.3, 90)])
    matrix = made(0, 600, sizes, 1e-9)
    assert _end(torch.linalg.svdvals(matrix), 1.0) == 100
    assert low_rank(matrix, _end) is None


def test_there_is_no_answer_without_noise_or_with_empty_dimensions() -> None:
    matrix = made(0, 600, torch.ones(5), 1e-7)
    matrix[:, 3] = 0
    assert low_rank(matrix, _end) is None
    assert low_rank(torch.zeros(600, WIDTH, dtype=torch.float64), _end) is None
    assert low_rank(made(0, 600, torch.ones(5), 0.0), _end) is None
