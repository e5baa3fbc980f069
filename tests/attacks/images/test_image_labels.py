"""The class of a single image."""

import pytest
from blobs import singles, small_model
from tiny import secret_of

from gradleak import ImageClient
from gradleak.attacks.images.labels import label_of_one

DEFENCES = [(), ("sign",), ("prune:ratio=0.9",), ("noise:sigma=0.001",)]


@pytest.fixture(scope="module")
def model():
    return small_model()


@pytest.mark.parametrize("defenses", DEFENCES)
def test_the_label_shows_whatever_the_defence(model, defenses):
    for truth in singles(6, seed=2):
        assert (
            label_of_one(ImageClient(model, defenses=defenses).update(truth, secret_of(0)), model) == truth.labels[0]
        )
