"""Images by linear algebra: exactly what was sent, a certificate only where it is right, and never under noise."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from blobs import blobs
from hypothesis import given, settings
from hypothesis import strategies as st
from pictured import CONFIGS, KINDS, MODULES, SIDE, SmallViT, image_model
from tiny import secret_of

from gradleak import GradleakError, ImageClient, Pictures, attack, load_model
from gradleak.attacks.images.exact import HALF_A_BYTE
from gradleak.attacks.images.first_layer import FirstLayer, first_layer
from gradleak.attacks.images.least_squares import roughness_gradient, solve
from gradleak.data.pictures import from_uris
from gradleak.models.image import Normalisation

SOLVED = ["vit", "deit", "dinov2", "beit", "dense", "small-vit"]
SHAPE = (3, SIDE, SIDE)


def noise_pictures(count, seed=0):
    """Pictures of random bytes, of which no prior knows anything."""
    pixels = np.random.default_rng(seed).integers(0, 256, (count, *SHAPE), dtype=np.uint8)
    return Pictures(pixels, tuple(int(n) % 4 for n in range(count)))


def right(found, pictures):
    return np.array_equal(from_uris(found.images), pictures.pixels)


@pytest.mark.parametrize("kind", SOLVED)
@pytest.mark.parametrize("client", ["fedsgd", "fedavg:lr=0.01"])
def test_one_image_comes_back_to_the_byte(kind, client):
    model = image_model(kind)
    for number, pictures in enumerate((noise_pictures(1), blobs(1, seed=3))):
        (found,) = attack(ImageClient(model, client=client).update(pictures), model, "exact")
        assert right(found, pictures), number
        assert found.certified_images == [0]
        assert (found.labels, found.found) == (list(pictures.labels), ["labels"])
        assert found.loss < 1e-5
        assert not found.notes


@pytest.mark.parametrize(
    "client", ["fedavg:lr=0.01,epochs=4", "fedsgd:mode=train", "fedavg:lr=0.01,steps=3,mode=train"]
)
def test_neither_more_steps_nor_dropout_hide_a_single_image(client):
    """Position embedding and weight move by sums over the same steps, and what is dropped comes after both."""
    torch.manual_seed(0)
    model = load_model(SmallViT(dropout=0.3), shape=SHAPE)
    pictures = noise_pictures(1)
    (found,) = attack(ImageClient(model, client=client).update(pictures, secret_of(1)), model, "exact")
    assert right(found, pictures)
    assert found.certified_images == [0]


def test_normalised_pixels_are_undone():
    model = image_model("vit")
    model.normalisation = Normalisation((0.4, 0.5, 0.6), (0.2, 0.3, 0.25))
    pictures = noise_pictures(1)
    (found,) = attack(ImageClient(model).update(pictures), model, "exact")
    assert right(found, pictures)
    assert found.certified_images == [0]


DEFENCES = [
    "noise:sigma=1e-7", "noise:sigma=1e-5", "noise:sigma=0.001", "noise:sigma=0.1", "sign", "prune:ratio=0.5",
    "prune:ratio=0.99", "mask:ratio=0.5", "quantize:bits=2", "quantize:bits=8", "quantize:bits=16",
]  # fmt: skip


@pytest.mark.parametrize("kind", ["vit", "deit", "dense"])
@pytest.mark.parametrize("defence", DEFENCES)
def test_a_certificate_is_never_wrong(kind, defence):
    """Signs and grids too can make equations that hold exactly, for pictures that nobody had."""
    model = image_model(kind)
    for pictures in (noise_pictures(1, seed=5), blobs(1, seed=6)):
        update = ImageClient(model, defenses=[defence]).update(pictures, secret_of(2))
        (found,) = attack(update, model, "exact")
        assert not found.certified_images or right(found, pictures)
        if defence in ("noise:sigma=0.001", "noise:sigma=0.1", "sign", "quantize:bits=2"):
            assert not found.certified_images
            assert found.notes


@pytest.mark.parametrize("kind", ["vit", "dense"])
@pytest.mark.parametrize("known", [(), ("batch_size",), ("batch_size", "labels")])
def test_a_batch_is_not_taken_for_an_image(kind, known):
    model = image_model(kind)
    for count in (2, 5):
        (found,) = attack(ImageClient(model, known).update(noise_pictures(count)), model, "exact")
        assert not found.certified_images
        assert len(found.images) == 1
        if known:
            assert "a mixture, which nothing proves" in found.notes[0]


def test_fewer_equations_than_pieces_leave_a_guess_that_is_said():
    """16 patches, 12 numbers each: 12 directions show, the rest is the smoothest or the nearest picture."""
    torch.manual_seed(0)
    model = load_model(SmallViT(width=12), shape=SHAPE)
    (random, smooth) = (noise_pictures(1), blobs(1))
    (found,) = attack(ImageClient(model).update(random), model, "exact")
    assert not found.certified_images
    assert "of 16 directions among the pieces" in found.notes[0]
    (found,) = attack(ImageClient(model).update(smooth), model, "exact")
    assert not found.certified_images or right(found, smooth)


def test_what_is_not_sent_is_said():
    model = image_model("vit")
    client = ImageClient(model, observe="regex:classifier")
    (found,) = attack(client.update(noise_pictures(1)), model, "exact")
    assert not found.images
    assert "exact recovery needs the gradient of vit.embeddings" in found.notes[0]
    both = ImageClient(model, observe="regex:embeddings")
    (found,) = attack(both.update(noise_pictures(1)), model, "exact")
    assert right(found, noise_pictures(1))
    assert found.certified_images == [0]
    assert found.labels is None


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in SOLVED])
def test_other_models_are_refused_in_a_line(kind):
    model = image_model(kind)
    assert first_layer(model) is None
    with pytest.raises(GradleakError, match="has neither: try ig"):
        attack(ImageClient(model).update(blobs(1)), model, "exact")
    assert set(SOLVED) < {*CONFIGS, *MODULES}


@given(st.integers(0, 10_000))
@settings(max_examples=20, deadline=None)
def test_pieces_are_those_that_a_convolution_sees(seed):
    layer = FirstLayer("w", "p", 0, (2, 6, 8), (3, 2))
    image = torch.randn(2, 6, 8, generator=torch.Generator().manual_seed(seed))
    assert torch.equal(layer.cut(image), F.unfold(image[None], (3, 2), stride=(3, 2))[0].T)
    assert torch.equal(layer.joined(layer.cut(image)), image)


@given(st.integers(1, 12), st.integers(1, 12), st.integers(0, 1000))
@settings(max_examples=40, deadline=None)
def test_solutions_solve_and_their_errors_cover_the_truth(pieces, width, seed):
    draw = torch.Generator().manual_seed(seed)
    outputs = torch.randn(pieces, width, generator=draw, dtype=torch.float64)
    truth = torch.rand(pieces, 6, generator=draw, dtype=torch.float64)
    found = solve(outputs, outputs.T @ truth, torch.full_like(truth, 0.5), lambda p: p)
    for answer in found.answers:
        assert torch.allclose(outputs.T @ answer, outputs.T @ truth, atol=1e-5)
    assert found.residual < 1e-5
    if found.error is not None:
        assert width > pieces
        assert len(found.answers) == 1
        off = float((found.answers[0] - truth).abs().max())
        assert off < 5 * found.error or off < HALF_A_BYTE


@given(st.integers(0, 1000))
@settings(max_examples=20, deadline=None)
def test_roughness_is_what_autograd_says(seed):
    image = torch.randn(
        2, 5, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64, requires_grad=True
    )
    rough = (image.diff(dim=-1).square().sum() + image.diff(dim=-2).square().sum()) / 2
    (wanted,) = torch.autograd.grad(rough, image)
    assert torch.allclose(roughness_gradient(image.detach()), wanted)
