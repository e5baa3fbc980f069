"""Small pictures with some structure, and a small target for them."""

from __future__ import annotations

import numpy as np

from gradleak import ImageModel, Pictures, load_model

SMALL = "lenet:size=16,classes=4"


def blobs(count: int, seed: int = 0, side: int = 16, channels: int = 3) -> Pictures:
    """Bright squares at random places on a random ground; the class says in which quarter they stand."""
    rng = np.random.default_rng(seed)
    pixels = np.empty((count, channels, side, side), dtype=np.uint8)
    labels = []
    for image in pixels:
        image[:] = rng.integers(0, 120, (channels, 1, 1))
        top, left = rng.integers(0, side - 5, 2)
        image[:, top : top + 6, left : left + 6] = rng.integers(150, 256, (channels, 1, 1))
        labels.append(2 * int(top > side // 3) + int(left > side // 3))
    return Pictures(pixels, tuple(labels))


def singles(count: int, seed: int = 0) -> list[Pictures]:
    """Batches of a single picture."""
    many = blobs(count, seed=seed)
    return [many.some([i]) for i in range(count)]


def small_model() -> ImageModel:
    return load_model(SMALL)


def write_npz(path, private: Pictures, auxiliary: Pictures | None = None):
    """A data file as users have them: channels last."""
    arrays = {"x_test": private.pixels.transpose(0, 2, 3, 1), "y_test": np.array(private.labels)}
    if auxiliary is not None:
        arrays |= {"x_train": auxiliary.pixels.transpose(0, 2, 3, 1), "y_train": np.array(auxiliary.labels)}
    np.savez(path, **arrays)
    return path
