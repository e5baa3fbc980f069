"""Learning To Invert on images."""

import pytest
from attacking import attacked
from blobs import blobs, singles, small_model

from gradleak import GradleakError, ImageClient, attack, score_images

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(scope="module")
def model():
    return small_model()


@pytest.mark.parametrize(
    ("layers", "mixed", "share"), [("mlp", False, 0.8), ("mlp", True, 0.8), ("linear", False, 0.2)]
)
def test_lti_learns_and_is_kept(model, tmp_path, layers, mixed, share):
    pictures = singles(8, seed=5)
    settings = {"steps": 100, "inverter": str(tmp_path / "kept"), "hidden": 64, "batch": 64, "auxiliary": 400}
    settings |= {"layers": layers, "mixed": mixed}
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


def test_lti_says_what_it_cannot_do(model):
    update = ImageClient(model).update(blobs(1))
    with pytest.raises(GradleakError, match="needs auxiliary images"):
        attack(update, model, "lti")
    with pytest.raises(GradleakError, match="too few"):
        attack(update, model, "lti", auxiliary=blobs(3, seed=1))
    with pytest.raises(GradleakError, match="dpsgd"):
        attacked(model, "lti", [blobs(1)], ("dpsgd:noise=1",))
    with pytest.raises(GradleakError, match="learns from plain gradients"):
        attack(ImageClient(model, client="fedavg:lr=0.1").update(blobs(1)), model, "lti", auxiliary=blobs(20, seed=1))
