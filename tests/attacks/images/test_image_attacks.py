"""Every attack on images: it lowers its objective, repeats itself, stops, and reads only what it was given."""

import numpy as np
import pytest
import torch
from attacking import OPTIONS, attacked
from blobs import blobs, singles, small_model

from gradleak import GradleakError, ImageClient, attack, score_images
from gradleak.core.budget import Budget
from gradleak.data.pictures import from_uris

DEFENCES = [(), ("sign",), ("prune:ratio=0.9",), ("noise:sigma=0.001",)]

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(scope="module")
def model():
    return small_model()


@pytest.mark.parametrize("defenses", DEFENCES)
def test_searches_lower_their_objective_and_find_the_label(model, defenses):
    for name in ("ig", "gi-gip"):
        for truth, found in zip(singles(2), attacked(model, name, singles(2), defenses), strict=True):
            assert found.trace[-1].loss <= found.trace[0].loss
            assert found.loss < found.trace[0].loss
            assert found.found == ["labels"]
            assert tuple(found.labels) == truth.labels
            assert from_uris(found.images).shape == (1, 3, 16, 16)


def test_ig_comes_nearer_to_the_truth_than_the_control(model):
    pictures = singles(3)
    found = attacked(model, "ig", pictures, steps=250)
    control = attack([ImageClient(model).update(p) for p in pictures], model, "control", auxiliary=blobs(60, seed=1))
    ours, theirs = (
        sum(score_images(guess, truth).metrics["mse"] for guess, truth in zip(each, pictures, strict=True))
        for each in (found, control)
    )
    assert ours < theirs


@pytest.mark.parametrize("name", OPTIONS)
def test_attacks_repeat_themselves_and_leave_the_model_alone(model, name):
    before = {n: p.detach().clone() for n, p in model.parameters().items()}
    first, again = (
        attacked(model, name, singles(2), seed=[3, 4], **({"epochs": 1} if name == "gi-gip" else {}))
        for _ in range(2)
    )
    assert [f.images for f in first] == [f.images for f in again]
    assert all(torch.equal(before[n], p) and p.grad is None for n, p in model.parameters().items())


@pytest.mark.parametrize("name", ["ig", "gi-gip"])
def test_results_do_not_depend_on_neighbours(model, name):
    together = attacked(model, name, singles(3), seed=[1, 2, 3])
    alone = attacked(model, name, singles(3)[1:2], seed=[2])
    assert np.allclose(from_uris(together[1].images), from_uris(alone[0].images), atol=2)


@pytest.mark.parametrize("name", OPTIONS)
def test_budgets_end_attacks(model, name):
    for found in attacked(model, name, singles(2), budget=Budget(seconds=0)):
        assert found.status == "budget-exhausted"
        assert found.images


@pytest.mark.parametrize("name", ["ig", "gi-gip"])
def test_steps_end_searches_too(model, name):
    """A budget of steps is counted, not only one of time."""
    for found in attacked(model, name, singles(1), budget=Budget(steps=2)):
        assert found.status == "budget-exhausted"


def test_without_auxiliary_images_the_control_is_grey(model):
    updates = [ImageClient(model).update(one) for one in singles(1)]
    for auxiliary in (None, blobs(3).some([])):
        (found,) = attack(updates, model, "control", auxiliary=auxiliary)
        assert (from_uris(found.images) == 128).all()


def test_batches_need_their_labels(model):
    (found,) = attacked(model, "ig", [blobs(3)], known=("batch_size", "labels"))
    assert len(found.images) == 3
    assert found.found == []
    with pytest.raises(GradleakError, match="need batch_size and labels"):
        attacked(model, "ig", [blobs(3)])
