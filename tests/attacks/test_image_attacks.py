"""Every attack on images: it lowers its objective, repeats itself, stops, and reads only what it was given."""

import numpy as np
import pytest
import torch
from blobs import blobs, small_model
from hypothesis import given, settings
from hypothesis import strategies as st

from gradleak import GradleakError, ImageClient, attack, score_images
from gradleak.attacks.images.labels import label_of_one
from gradleak.attacks.images.matching import GradientMatcher, cosine_distance, hinge_distance
from gradleak.attacks.inversion.image_features import image_features, outer_factors
from gradleak.attacks.inversion.ridge import RIDGES, LinearInverter, fit_ridge
from gradleak.core.budget import Budget
from gradleak.core.progress import SILENT
from gradleak.data.pictures import from_uris

OPTIONS = {
    "ig": {"steps": 8},
    "gi-gip": {"latent_steps": 3, "weight_steps": 3, "restarts": 2, "latent": 8, "width": 2, "epochs": 1},
    "lti": {"steps": 5, "hidden": 16, "batch": 16},
}
DEFENCES = [(), ("sign",), ("prune:ratio=0.9",), ("noise:sigma=0.001",)]


@pytest.fixture(scope="module")
def model():
    return small_model()


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("GRADLEAK_CACHE", str(tmp_path / "cache"))


def attacked(model, name, pictures, defenses=(), known=("batch_size",), auxiliary=60, **more):
    updates = [ImageClient(model, known, defenses=defenses).update(one) for one in pictures]
    return attack(updates, model, name, auxiliary=blobs(auxiliary, seed=1), **{**OPTIONS[name], **more})


def singles(count, seed=0):
    many = blobs(count, seed=seed)
    return [many.some([i]) for i in range(count)]


@pytest.mark.parametrize("defenses", DEFENCES)
def test_searches_lower_their_objective_and_find_the_label(model, defenses):
    for name in ("ig", "gi-gip"):
        for truth, found in zip(singles(2), attacked(model, name, singles(2), defenses), strict=True):
            assert found.trace[-1].loss <= found.trace[0].loss
            assert found.loss < found.trace[0].loss
            assert found.found == ["labels"]
            assert tuple(found.labels) == truth.labels
            assert from_uris(found.images).shape == (1, 3, 16, 16)


@pytest.mark.parametrize("defenses", DEFENCES)
def test_the_truth_explains_its_update_best(model, defenses):
    """Whatever the client did, the true image is nearer than others by the distance that fits."""
    pictures = singles(4)
    updates = [ImageClient(model, defenses=defenses).update(one) for one in pictures]
    matcher = GradientMatcher(model, updates)
    pixels = torch.stack([one.values() for one in pictures])
    labels = torch.tensor([one.labels for one in pictures])
    for number in range(4):
        which = torch.full((4,), number)
        assert int(matcher.distances(pixels, labels[which], which).argmin()) == number


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


@pytest.mark.parametrize(("layers", "share"), [("mlp", 0.8), ("linear", 0.2)])
def test_lti_learns_and_is_kept(model, tmp_path, layers, share):
    pictures = singles(8, seed=5)
    settings = {"steps": 100, "inverter": str(tmp_path / "kept"), "hidden": 64, "batch": 64, "auxiliary": 400}
    settings["layers"] = layers
    found = attacked(model, "lti", pictures, **settings)
    updates = [ImageClient(model).update(p) for p in pictures]
    control = attack(updates, model, "control", auxiliary=blobs(60, seed=1))
    error, blind = (
        sum(score_images(guess, truth).metrics["mse"] for guess, truth in zip(each, pictures, strict=True))
        for each in (found, control)
    )
    assert error < share * blind
    # Once trained it needs neither auxiliary images nor time, and refuses what it was not made for.
    again = attack(updates, model, "lti", inverter=str(tmp_path / "kept"))
    assert [a.images for a in again] == [f.images for f in found]
    other = ImageClient(model, defenses=["sign"]).update(pictures[0])
    with pytest.raises(GradleakError, match="trained for updates with no defence"):
        attack(other, model, "lti", inverter=str(tmp_path / "kept"))
    with pytest.raises(GradleakError, match="of one example"):
        attack(ImageClient(model).update(blobs(2)), model, "lti", inverter=str(tmp_path / "kept"))


def test_the_linear_inverter_is_ridge_regression():
    """Against the normal equations, with more features than examples and the best of the ridges."""
    generator = torch.Generator().manual_seed(0)
    truth = torch.randn(12, 4, generator=generator) / 10
    given = torch.randn(40, 12, generator=generator)
    wanted = 0.5 + given @ truth
    network = LinearInverter(12, 4)
    error = fit_ridge(network, [(given[:9], wanted[:9])], (given[9:], wanted[9:]), SILENT)
    errors = []
    for ridge in RIDGES:
        x, mean = given[:9], wanted[:9].mean(dim=0)
        weight = torch.linalg.solve(x.T @ x + 12 * ridge * torch.eye(12), x.T @ (wanted[:9] - mean))
        errors.append(float(((given[9:] @ weight + mean).clamp(0, 1) - wanted[9:]).square().mean()))
    assert error == pytest.approx(min(errors), rel=1e-3)


def test_lti_says_what_it_cannot_do(model):
    update = ImageClient(model).update(blobs(1))
    with pytest.raises(GradleakError, match="needs auxiliary images"):
        attack(update, model, "lti")
    with pytest.raises(GradleakError, match="too few"):
        attack(update, model, "lti", auxiliary=blobs(3, seed=1))
    with pytest.raises(GradleakError, match="dpsgd"):
        attacked(model, "lti", [blobs(1)], ("dpsgd:noise=1",))
    with pytest.raises(GradleakError, match="learns from gradients"):
        attack(ImageClient(model, client="fedavg:lr=0.1").update(blobs(1)), model, "lti", auxiliary=blobs(20, seed=1))


@pytest.mark.parametrize("defenses", DEFENCES)
def test_the_label_shows_whatever_the_defence(model, defenses):
    for truth in singles(6, seed=2):
        assert label_of_one(ImageClient(model, defenses=defenses).update(truth), model) == truth.labels[0]


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.integers(2, 6), st.integers(2, 9))
def test_outer_factors_are_found_up_to_scale(seed, classes, inputs):
    generator = torch.Generator().manual_seed(seed)
    errors = torch.randn(classes, generator=generator)
    states = torch.rand(inputs, generator=generator) + 0.01
    found, read = outer_factors(torch.outer(errors, states)[None])
    assert torch.allclose(torch.outer(found[0], read[0]), torch.outer(errors, states), atol=1e-4)


def test_features_hold_the_whole_update(model):
    tensors = {name: t[None] for name, t in ImageClient(model).update(blobs(1)).tensors.items()}
    whole = image_features(tensors, model.head, "whole")
    assert whole.shape[1] == sum(t.numel() for t in tensors.values())
    shorter = image_features(tensors, model.head, "structured")
    classes, inputs = tensors["head.weight"].shape[1:]
    assert whole.shape[1] - shorter.shape[1] == classes * inputs - classes - inputs


@given(st.lists(st.floats(-4, 4), min_size=2, max_size=8), st.floats(0.1, 10))
def test_distances_do_not_depend_on_size(values, scale):
    one = torch.tensor([values]) + 0.01
    assert float(cosine_distance(one * scale, one)) == pytest.approx(0, abs=1e-4)
    assert float(hinge_distance(one * scale, one.sign())) == 0
    assert float(hinge_distance(one * scale, -one.sign())) == pytest.approx(1, abs=1e-4)
