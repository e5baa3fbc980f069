"""Feature hashing against the plain loop."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from gradleak.attacks.inversion.hashing import Hashing

SHAPES = st.dictionaries(st.sampled_from("abcd"), st.lists(st.integers(1, 5), min_size=1, max_size=3), min_size=1)


@given(shapes=SHAPES, bins=st.integers(1, 20), seed=st.integers(0, 9), rows=st.integers(1, 4))
def test_every_coordinate_is_added_to_its_bin(shapes, bins, seed, rows):
    generator = torch.Generator().manual_seed(seed)
    tensors = {name: torch.randn(rows, *shape, generator=generator) for name, shape in shapes.items()}
    hashing = Hashing(shapes, bins, seed)
    wanted = torch.zeros(rows, bins)
    for name, tensor in tensors.items():
        for row in range(rows):
            for place, value in zip(hashing.places[name], tensor[row].flatten(), strict=True):
                wanted[row, place] += value
    assert torch.allclose(hashing.of(tensors), wanted, atol=1e-5)
    backwards = Hashing(dict(reversed(shapes.items())), bins, seed)
    assert torch.allclose(backwards.of(tensors), wanted, atol=1e-5), "the order of the names must not matter"


def test_a_tensor_that_was_not_sent_counts_as_zero():
    hashing = Hashing({"a": (3,), "b": (2,)}, 4, 0)
    a = torch.randn(2, 3)
    assert torch.equal(hashing.of({"a": a}), hashing.of({"a": a, "b": torch.zeros(2, 2)}))


def test_noise_after_hashing_is_as_large_as_hashed_noise():
    hashing = Hashing({"a": (300,)}, 7, 1)
    assert int(hashing.sizes.sum()) == 300
    generator = torch.Generator().manual_seed(0)
    after = hashing.noise(4000, 0.5, generator).std(dim=0)
    before = hashing.of({"a": 0.5 * torch.randn(4000, 300, generator=generator)}).std(dim=0)
    assert torch.allclose(after, before, rtol=0.1)
