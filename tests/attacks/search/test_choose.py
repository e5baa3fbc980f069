"""Choosing candidates with few gradients gives what full scoring gives, always."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradleak.attacks.search.choose import Proposals, choose
from gradleak.matching.dummies import Dummies


class Table:
    """An engine whose distances are written down, and which counts how many it was asked for."""

    def __init__(self, values):
        self.table, self.asked = values, 0

    def values(self, dummies):
        self.asked += len(dummies)
        return torch.stack([self.table[int(t)][int(e)] for t, e in zip(dummies.target, dummies.embeds, strict=True)])


def proposals_of(target, nll):
    count = len(nll)
    numbers = torch.arange(count, dtype=torch.float32).view(count, 1, 1, 1)
    filler = torch.ones(count, 1, 1)
    return Proposals(Dummies(numbers, filler > 0, filler[..., 0].long(), torch.full((count,), target)), nll)


numbers = st.floats(0, 2, width=32)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.lists(st.tuples(numbers, st.floats(0, 12, width=32)), min_size=1, max_size=60), min_size=1, max_size=4
    )
)
def test_same_choice_as_full_scoring(rows):
    distances = [torch.tensor([d for d, _ in row]) for row in rows]
    losses = [torch.tensor([n for _, n in row]) for row in rows]
    engine = Table(distances)
    chosen = choose(engine, [proposals_of(i, n) for i, n in enumerate(losses)], 0.2)
    for winner, distance, nll in zip(chosen, distances, losses, strict=True):
        full = distance + 0.2 * nll
        assert full[winner] == full.min()
    assert engine.asked <= sum(len(row) for row in rows)


def test_a_clear_prior_saves_most_gradients():
    nll = torch.cat([torch.tensor([3.0]), torch.full((199,), 8.0)])
    engine = Table([torch.full((200,), 0.05)])
    assert choose(engine, [proposals_of(0, nll)], 0.2) == [0]
    assert engine.asked < 20
