"""Compositions of a number come cheapest first."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradleak.attacks.evidence.compositions import cheapest_compositions
from gradleak.attacks.evidence.labels import _nearest_counts


@given(st.lists(st.floats(-1, 5), min_size=1, max_size=4), st.integers(1, 5))
def test_compositions_come_in_the_order_of_a_full_list(wanted, size):
    def misfit(counts):
        return sum(abs(count - own) for count, own in zip(counts, wanted, strict=True))

    every = [counts for counts in itertools.product(range(size + 1), repeat=len(wanted)) if sum(counts) == size]
    found = list(cheapest_compositions(_nearest_counts(wanted, size), misfit, least=0, most=size, unordered=False))
    assert sorted(found) == sorted(every)
    assert [misfit(counts) for counts in found] == pytest.approx(sorted(map(misfit, every)))
