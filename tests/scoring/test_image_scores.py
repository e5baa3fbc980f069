"""Metrics of images against scikit-image and the authors' LPIPS, and the pairing within a batch."""

import pickle

import numpy as np
import pytest
import torch
from blobs import blobs
from hypothesis import given
from hypothesis import strategies as st

from gradleak import GradleakError, Pictures, Reconstruction, score_images
from gradleak.core.assets import find, is_cached
from gradleak.scoring.metrics.lpips import LAYERS, Lpips, load_lpips, read_arrays
from gradleak.scoring.metrics.pixels import mse, psnr, ssim


def pair(seed, channels, height, width, mix):
    rng = np.random.default_rng(seed)
    a, b = (rng.integers(0, 256, (channels, height, width)) / 255 for _ in range(2))
    return a, mix * a + (1 - mix) * b


# scikit-image 0.26.0: structural_similarity(channel_axis=0, data_range=1, gaussian_weights=True, sigma=1.5,
# use_sample_covariance=False), peak_signal_noise_ratio and mean_squared_error.
@pytest.mark.parametrize(
    ("made", "expected"),
    [
        ((0, 3, 32, 32, 0.5), (0.6646062378127662, 13.639663920141196, 0.043254730251986416)),
        ((1, 1, 28, 28, 0.9), (0.9899997138049746, 27.864814927083575, 0.001635002824659275)),
        ((2, 3, 16, 24, 0.0), (0.016423350485168697, 7.8014365150959435, 0.16590380569439103)),
    ],
)
def test_as_scikit_image(made, expected):
    a, b = pair(*made)
    assert (ssim(a, b), psnr(mse(a, b)), mse(a, b)) == pytest.approx(expected, rel=1e-9)


def test_small_images_have_no_ssim():
    with pytest.raises(ValueError, match="at least 11"):
        ssim(np.zeros((1, 10, 10)), np.zeros((1, 10, 10)))
    tiny = Pictures(np.zeros((1, 1, 4, 4), np.uint8), (0,))
    assert sorted(score_images(Reconstruction(images=tiny.uris()), tiny).metrics) == ["close_images", "mse", "psnr"]


# lpips 0.1.4 with the weights of the asset, on the same pairs.
@pytest.mark.skipif(not is_cached(find("lpips")), reason="the asset lpips is not in the cache")
@pytest.mark.parametrize(
    ("backbone", "expected"),
    [
        ("alexnet", [0.04368843510746956, 0.04618782177567482, 0.0310379546135664]),
        ("vgg16", [0.08367425203323364, 0.07817921787500381, 0.0863495022058487]),
    ],
)
def test_as_the_authors_lpips(backbone, expected):
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.rand(3, 3, 64, 64, generator=generator) for _ in range(2))
    assert load_lpips(backbone).distances(a, 0.7 * a + 0.3 * b).tolist() == pytest.approx(expected, rel=1e-5)


def random_weights(backbone):
    rng = np.random.default_rng(0)
    name, layers = LAYERS[backbone]
    kernels, channels, heads = {}, 3, []
    for i, (_, padding, _, compared) in enumerate(layers):
        side = {2: 5, 1: 3}[padding] if i else {"alexnet": 11, "vgg16": 3}[backbone]
        kernels[f"Conv_{i}"] = {
            "kernel": rng.normal(size=(side, side, channels, 4)).astype("f4"),
            "bias": np.zeros(4, "f4"),
        }
        channels = 4
        heads += [{"Conv_0": {"kernel": rng.random((1, 1, 4, 1)).astype("f4")}}] if compared else []
    return {name: kernels} | {f"NetLinLayer_{i}": head for i, head in enumerate(heads)}


@pytest.mark.parametrize("backbone", ["alexnet", "vgg16"])
def test_lpips_is_a_distance_and_takes_small_grey_images(backbone):
    network = Lpips(random_weights(backbone), backbone)
    grey = torch.rand(2, 1, 16, 16)
    assert network.distances(grey, grey).tolist() == [0, 0]
    apart = network.distances(grey, grey.flip(0))
    assert float(apart[0]) == pytest.approx(float(apart[1]), rel=1e-4)
    assert float(apart[0]) > 0


def test_pickles_may_hold_arrays_and_nothing_else(tmp_path):
    place = tmp_path / "weights.ckpt"
    place.write_bytes(pickle.dumps({"a": {"b": np.arange(3.0)}}, protocol=3).replace(b"numpy._core", b"numpy.core"))
    assert read_arrays(place)["a"]["b"].tolist() == [0, 1, 2]
    for hostile in (pytest.main, print, np.load):
        place.write_bytes(pickle.dumps({"a": hostile}))
        with pytest.raises(GradleakError, match="does not hold plain arrays"):
            read_arrays(place)
    place.write_bytes(pickle.dumps([1, 2]))
    with pytest.raises(GradleakError, match="not hold a table"):
        read_arrays(place)


@given(st.permutations(range(4)))
def test_a_batch_is_paired_whatever_its_order(order):
    truth = blobs(4)
    shuffled = Reconstruction(images=[truth.uris()[i] for i in order])
    scored = score_images(shuffled, truth)
    assert scored.metrics["mse"] == 0
    assert scored.metrics["psnr"] == 100
    assert [p.truth == p.reconstruction for p in scored.pairs] == [True] * 4


def test_missing_images_count_as_grey():
    truth = blobs(2)
    scored = score_images(Reconstruction(images=truth.uris()[1:]), truth)
    assert [pair.reconstruction for pair in scored.pairs] == ["", truth.uris()[1]]
    assert scored.pairs[0].scores["mse"] == pytest.approx(mse(truth.pixels[0] / 255, np.full((3, 16, 16), 128 / 255)))
    with pytest.raises(GradleakError, match="another shape"):
        score_images(Reconstruction(images=blobs(1, side=20).uris()), truth)
