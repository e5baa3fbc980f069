"""What rows of a gradient show of tokens."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradleak.attacks.evidence.rows import leverages, predicted_rows, present_rows, standing_out


@given(st.integers(0, 99), st.integers(1, 30))
def test_only_tokens_that_came_are_pulled(seed: int, predicted: int) -> None:
    """A head's gradient made by hand: states with something in common, probabilities, and the labels' own share."""
    generator = torch.Generator().manual_seed(seed)
    states = 1 + 0.5 * torch.randn(predicted, 24, generator=generator).double()
    chances = torch.randn(predicted, 400, generator=generator).double().softmax(dim=1)
    labels = torch.randint(400, (predicted,), generator=generator)
    gradient = (chances - torch.nn.functional.one_hot(labels, 400)).T @ states / predicted
    assert set(predicted_rows(gradient).nonzero()[:, 0].tolist()) == set(labels.tolist())


@given(st.integers(0, 99))
def test_leverages_are_shares_of_the_rank(seed: int) -> None:
    table = torch.randn(50, 6, generator=torch.Generator().manual_seed(seed))
    levers = leverages(table)
    assert float(levers.sum()) == pytest.approx(6, abs=1e-3)
    assert float(levers.min()) >= 0
    table[7] *= 100
    assert 7 in standing_out(leverages(table), 1).tolist()


@given(st.integers(0, 999), st.integers(1, 20), st.floats(1.0, 100.0))
def test_clear_rows_are_found_whatever_the_scale(seed: int, count: int, scale: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    table = torch.randn(500, 32, generator=generator)
    rows = torch.randperm(500, generator=generator)[:count]
    table[rows] += 5 * torch.randn(count, 32, generator=generator)
    found = present_rows(scale * table)
    assert found is not None
    assert set(rows.tolist()) <= set(found.tolist())
    assert len(found) <= count + 2


def test_some_rows_at_a_time_give_what_all_at_once_give(monkeypatch: pytest.MonkeyPatch) -> None:
    table = torch.randn(50, 8, generator=torch.Generator().manual_seed(0))
    whole = leverages(table), predicted_rows(table)
    monkeypatch.setattr("gradleak.attacks.evidence.rows.AT_ONCE", 7)
    for some, every in zip((leverages(table), predicted_rows(table)), whole, strict=True):
        torch.testing.assert_close(some, every)
