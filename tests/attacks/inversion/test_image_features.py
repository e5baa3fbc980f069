"""What an image inverter is given of an update."""

import torch
from blobs import blobs, small_model
from hypothesis import given, settings
from hypothesis import strategies as st

from gradleak import ImageClient
from gradleak.attacks.inversion.image_features import image_features, outer_factors


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.integers(2, 6), st.integers(2, 9))
def test_outer_factors_are_found_up_to_scale(seed, classes, inputs):
    generator = torch.Generator().manual_seed(seed)
    errors = torch.randn(classes, generator=generator)
    states = torch.rand(inputs, generator=generator) + 0.01
    found, read = outer_factors(torch.outer(errors, states)[None])
    assert torch.allclose(torch.outer(found[0], read[0]), torch.outer(errors, states), atol=1e-4)


def test_features_hold_the_whole_update():
    model = small_model()
    tensors = {name: t[None] for name, t in ImageClient(model).update(blobs(1)).tensors.items()}
    whole = image_features(tensors, model.head, "whole")
    assert whole.shape[1] == sum(t.numel() for t in tensors.values())
    shorter = image_features(tensors, model.head, "structured")
    classes, inputs = tensors["head.weight"].shape[1:]
    assert whole.shape[1] - shorter.shape[1] == classes * inputs - classes - inputs
