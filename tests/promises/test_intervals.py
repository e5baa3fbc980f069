"""A 95 % interval holds the true mean about that often, also of few trials, and stays in the range of its metric."""

from __future__ import annotations

import pytest
import scipy
from hypothesis import given
from hypothesis import strategies as st

from gradleak.bench.coverage import SCORES, coverage, percentile_bootstrap
from gradleak.scoring.interval import mean_interval
from gradleak.verdict.rule import ENOUGH_TRIALS


@pytest.mark.parametrize("scores", SCORES)
@pytest.mark.parametrize("trials", [2, 3, 5, 10])
def test_few_trials_are_told_honestly(scores: str, trials: int) -> None:
    assert coverage(mean_interval, *SCORES[scores], trials, audits=200) >= 85


def test_the_bootstrap_of_few_trials_was_not() -> None:
    """What the test above is about: it would fail with the percentile bootstrap."""
    assert coverage(percentile_bootstrap, *SCORES["whole or nothing, 3 in 10"], 3, audits=200) < 75


ranges = st.sampled_from([(0.0, 100.0), (0.0, 1.0), (-1.0, 1.0), (-100.0, 100.0), (1.0, 1e6)])


@given(ranges, st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_an_interval_lies_in_its_range_around_the_mean_and_repeats(
    bounds: tuple[float, float], shares: list[float]
) -> None:
    floor, ceiling = bounds
    values = [min(floor + share * (ceiling - floor), ceiling) for share in shares]
    one = mean_interval(values, floor, ceiling)
    slack = 1e-9 * (ceiling - floor)
    assert floor <= one.low <= one.mean + slack
    assert one.mean - slack <= one.high <= ceiling
    assert one == mean_interval(values, floor, ceiling)


@given(st.lists(st.sampled_from([0.0, 100.0]), min_size=2, max_size=60))
def test_all_or_nothing_is_the_exact_binomial_interval(values: list[float]) -> None:
    exact = scipy.stats.binomtest(int(sum(values) / 100), len(values)).proportion_ci(0.95, "exact")
    one = mean_interval(values)
    assert (one.low, one.high) == (pytest.approx(100 * exact.low), pytest.approx(100 * exact.high))


def test_one_trial_has_no_interval_and_none_in_ten_is_not_never() -> None:
    one = mean_interval([40.0])
    assert (one.low, one.high) == (0.0, 100.0)
    assert mean_interval([0.0] * ENOUGH_TRIALS).high > 30
