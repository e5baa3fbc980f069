"""Orders that the discrete phase proposes."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from gradleak.attacks.search.reorder import MOVES, propose


@given(st.integers(1, 30), st.data())
def test_every_move_is_a_permutation(n, data):
    places = [data.draw(st.integers(0, n - 1)) for _ in range(3)]
    for move in MOVES:
        assert sorted(move(n, *places)) == list(range(n))


@given(st.integers(1, 12), st.integers(1, 60), st.integers(0, 99))
def test_proposals_are_distinct_and_keep_the_present_order(n, count, seed):
    orders = propose(n, count, torch.Generator().manual_seed(seed))
    assert orders[0] == tuple(range(n))
    assert len(set(orders)) == len(orders) <= count
    assert orders == propose(n, count, torch.Generator().manual_seed(seed))
