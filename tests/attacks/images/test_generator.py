"""The generator of GI-GIP."""

import pytest
import torch
from blobs import blobs

from gradleak.attacks.images.generator import trained_generator
from gradleak.core.assets import cache_folder
from gradleak.core.budget import Budget
from gradleak.core.progress import Progress

pytestmark = pytest.mark.usefixtures("own_cache")


class Losses(Progress):
    def __init__(self):
        self.all = []

    def advance(self, done, *, loss=None, text=None):
        self.all.append(loss)


@pytest.mark.parametrize("mixed", [False, True])
def test_it_learns_and_is_kept(mixed):
    losses = Losses()
    settings = (blobs(128), 8, 4, 8, torch.device("cpu"), Budget())
    generator = trained_generator(*settings, losses, mixed)
    assert losses.all[-1] < 0.95 * losses.all[0]
    again = trained_generator(*settings, losses := Losses(), mixed)
    assert not losses.all  # it came from the cache
    for one, other in zip(generator.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other)
        assert one.dtype == torch.float32
    assert len(list((cache_folder() / "generators").iterdir())) == 1
    trained_generator(*settings, Losses(), not mixed)
    assert len(list((cache_folder() / "generators").iterdir())) == 2
