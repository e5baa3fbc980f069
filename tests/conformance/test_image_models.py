"""Every attack on images, on every kind of image model, under every defence: it runs, or refuses in one line."""

import pytest
import torch
from blobs import blobs
from pictured import CLASSES, KINDS, SIDE, image_model
from tiny import secret_of

from gradleak import GradleakError, ImageClient, attack
from gradleak.attacks import IMAGE_ATTACKS
from gradleak.data.pictures import from_uris
from gradleak.defenses import DEFENSES

pytestmark = pytest.mark.usefixtures("own_cache")

QUICK = {
    "ig": {"steps": 1},
    "gi-gip": {"latent_steps": 1, "weight_steps": 1, "restarts": 1, "latent": 4, "width": 1, "epochs": 1},
    "lti": {"steps": 1, "hidden": 2, "batch": 2},
}
CHAINS = {
    "none": (),
    "adaptiveclip": ("adaptiveclip",),
    "clip": ("clip:norm=0.1",),
    "dpsgd": ("dpsgd:noise=0.1",),
    "frozen": ("frozen:parts=none,names=*bias",),
    "layers": ("layers:send=1-2",),
    "localdp": ("localdp:epsilon=100",),
    "mask": ("mask:ratio=0.5",),
    "noise": ("noise:sigma=0.001",),
    "percentile": ("percentile",),
    "prune": ("prune:ratio=0.9",),
    "quantize": ("quantize:bits=4",),
    "sign": ("sign",),
    "svt": ("svt",),
    "tree": ("tree:noise=0.001,round=6",),
    "wire": ("wire:format=normfloat4",),
}
# Each pair has to be seen with some attack, and each attack with every model: not all three with one another.
EVERY_DEFENCE = ["ig", "exact"]
KINDS_IN_TURN = {kind: number for number, kind in enumerate(KINDS)}
REFUSED = (
    "try ig", "batch norm", "Opacus cannot separate", "must be known", "nothing of", "learns from plain gradients",
    "cannot be trained under dpsgd", "selects nothing", "too few",
)  # fmt: skip


def outcome(model, name, chain, client="fedsgd"):
    """The classes and pictures that came back, or the line in which it was refused."""
    try:
        update = ImageClient(model, defenses=chain, client=client).update(blobs(1), secret_of(0))
        (found,) = attack(update, model, name, auxiliary=blobs(6, seed=1), **QUICK.get(name, {}))
    except GradleakError as refused:
        line = str(refused)
        assert "\n" not in line
        assert any(words in line for words in REFUSED), line
        return line
    assert found.status == "completed"
    assert not found.images or from_uris(found.images).shape == (1, 3, SIDE, SIDE)
    assert found.labels is None or all(0 <= label < CLASSES for label in found.labels)
    assert found.images or found.notes
    return found


def test_every_defence_is_listed():
    assert set(DEFENSES.names()) == {*CHAINS} - {"none"}
    assert {*QUICK, "control", "exact"} == set(IMAGE_ATTACKS.names())


@pytest.mark.parametrize("kind", KINDS)
def test_attacks_run_on_every_model(kind):
    model = image_model(kind)
    before = {name: tensor.clone() for name, tensor in model.module.state_dict().items()}
    for name in IMAGE_ATTACKS.names():
        found = outcome(model, name, ())
        assert not isinstance(found, str) or name == "exact"
    assert not isinstance(outcome(model, "ig", (), client="fedavg:lr=0.01"), str)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.module.state_dict().items())


@pytest.mark.parametrize("kind", KINDS)
def test_defences_work_on_every_model(kind):
    model = image_model(kind)
    for name in EVERY_DEFENCE:
        for number, (defence, chain) in enumerate(CHAINS.items()):
            # Each defence meets each model with ig; with exact, every third model, and others with the next.
            if name == "exact" and (KINDS_IN_TURN[kind] + number) % 3:
                continue
            found = outcome(model, name, chain)
            if defence in ("none", "noise", "prune", "quantize", "sign", "mask") and name == "ig":
                assert not isinstance(found, str), (defence, found)


@pytest.mark.parametrize("kind", ["vit", "small-vit", "depthwise"])
def test_clipping_without_noise_is_a_scaled_gradient(kind):
    """Of a single image: where Opacus can separate images, it gives the gradient that plain autograd gives."""
    model = image_model(kind)
    plain = ImageClient(model).update(blobs(1)).tensors
    try:
        clipped = ImageClient(model, defenses=["dpsgd:noise=0,clip=0.01"]).update(blobs(1)).tensors
    except GradleakError as refused:
        assert "Opacus cannot separate" in str(refused)
        return
    size = torch.cat([tensor.flatten() for tensor in plain.values()]).norm()
    for name, tensor in clipped.items():
        assert torch.allclose(tensor, plain[name] * (0.01 / size), atol=1e-6), name


@pytest.mark.parametrize("kind", ["resnet", "regnet", "mobilenet_v2", "residual"])
def test_a_batch_norm_cannot_be_clipped(kind):
    with pytest.raises(GradleakError, match="is a batch norm, which mixes the examples"):
        ImageClient(image_model(kind), defenses=["dpsgd:noise=1"]).update(blobs(2))


@pytest.mark.parametrize("kind", ["resnet", "residual"])
@pytest.mark.parametrize("mode", ["eval", "train"])
def test_the_attacker_computes_what_the_client_computed(kind, mode):
    """With the true images and labels the distance is 0 in either mode, and not in the other."""
    from gradleak.attacks.images.matching import GradientMatcher

    model, pictures = image_model(kind), blobs(3)
    update = ImageClient(model, client=f"fedsgd:mode={mode}").update(pictures)
    matcher = GradientMatcher(model, [update])
    truth, labels = pictures.values()[None], torch.tensor([pictures.labels])
    assert float(matcher.distances(truth, labels, torch.tensor([0]))) < 1e-5
    matcher.training = not matcher.training
    assert float(matcher.distances(truth, labels, torch.tensor([0]))) > 1e-2


def test_a_batch_norm_over_a_single_number_is_said():
    model = image_model("mobilenet_v2")
    with pytest.raises(GradleakError, match="cannot be trained on this batch"):
        ImageClient(model, client="fedsgd:mode=train").update(blobs(1))
