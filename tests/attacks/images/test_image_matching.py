"""Distances between gradients of images."""

import pytest
import torch
from blobs import singles, small_model
from hypothesis import given
from hypothesis import strategies as st
from tiny import secret_of

from gradleak import ImageClient
from gradleak.attacks.images.matching import GradientMatcher, cosine_distance, hinge_distance

DEFENCES = [(), ("sign",), ("prune:ratio=0.9",), ("noise:sigma=0.001",)]


@pytest.fixture(scope="module")
def model():
    return small_model()


@pytest.mark.parametrize("defenses", DEFENCES)
def test_the_truth_explains_its_update_best(model, defenses):
    """Whatever the client did, the true image is nearer than others by the distance that fits."""
    pictures = singles(4)
    updates = [ImageClient(model, defenses=defenses).update(one, secret_of(0)) for one in pictures]
    matcher = GradientMatcher(model, updates)
    pixels = torch.stack([one.values() for one in pictures])
    labels = torch.tensor([one.labels for one in pictures])
    for number in range(4):
        which = torch.full((4,), number)
        assert int(matcher.distances(pixels, labels[which], which).argmin()) == number


@given(st.lists(st.floats(-4, 4), min_size=2, max_size=8), st.floats(0.1, 10))
def test_distances_do_not_depend_on_size(values, scale):
    one = torch.tensor([values]) + 0.01
    assert float(cosine_distance(one * scale, one)) == pytest.approx(0, abs=1e-4)
    assert float(hinge_distance(one * scale, one.sign())) == 0
    assert float(hinge_distance(one * scale, -one.sign())) == pytest.approx(1, abs=1e-4)
