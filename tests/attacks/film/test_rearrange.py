"""Better orders of a sentence."""

from __future__ import annotations

from itertools import pairwise

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gradleak.attacks.film.rearrange import rearranged


@settings(max_examples=25)
@given(st.lists(st.integers(0, 9), min_size=2, max_size=20), st.integers(0, 99))
def test_reordering_never_makes_it_worse_and_uses_the_bag(tokens: list[int], seed: int) -> None:
    def score(sentences: object) -> Tensor:
        return torch.tensor([float(sum(abs(a - b) for a, b in pairwise(s))) for s in sentences])

    best, value = rearranged(
        tokens, score, [3, 4], 5, torch.Generator().manual_seed(seed), ends=lambda token: token == 9
    )
    assert value <= float(score([tokens])[0])
    assert value == float(score([best])[0])
    assert set(best) <= {*tokens, 3, 4}
