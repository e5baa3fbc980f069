"""CIFAR-10 as an asset: its sheets of pictures, turned once into a file that `read_pictures` takes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gradleak.core.assets import cache_folder, find, pull
from gradleak.core.errors import GradleakError
from gradleak.core.files import replacing
from gradleak.core.progress import SILENT, Progress
from gradleak.core.reading import read_bytes, read_text
from gradleak.data.png import Pixels
from gradleak.data.png_reader import read_png

CIFAR10 = "cifar10"
SIDE, CLASSES = 32, 10
# Every sheet has a line per image, which holds the image's own lines one after the other.
TEST, TEST_CLASSES = ("test_batch.png",), "test_lables.json"
TRAINING, TRAINING_CLASSES = tuple(f"data_batch_{number}.png" for number in range(1, 6)), "train_lables.json"
# Raised when the file's form changes.
FORM = 1


def cifar10_file(progress: Progress = SILENT) -> Path:
    """CIFAR-10 as an .npz file in the cache: 10,000 test images to audit and 50,000 training images beside them.

    At the first call the asset is fetched and its sheets are decoded, which takes some ten seconds of a core.
    """
    hashes = "".join(file.sha256 for file in find(CIFAR10).files)
    kept = cache_folder() / "images" / f"{CIFAR10}-{hashlib.sha256(f'{FORM} {hashes}'.encode()).hexdigest()[:16]}.npz"
    if kept.is_file():
        return kept
    folder = pull(CIFAR10, progress)
    progress.begin("decoding the sheets of CIFAR-10", len(TEST) + len(TRAINING), "sheets")
    try:
        x_test, x_train = _images(folder, TEST, 0, progress), _images(folder, TRAINING, len(TEST), progress)
    finally:
        progress.end()
    y_test, y_train = _labels(folder / TEST_CLASSES, len(x_test)), _labels(folder / TRAINING_CLASSES, len(x_train))
    kept.parent.mkdir(parents=True, exist_ok=True)
    with replacing(kept) as scratch, scratch.open("wb") as stream:
        np.savez(stream, x_test=x_test, y_test=y_test, x_train=x_train, y_train=y_train)
    return kept


def _images(folder: Path, sheets: Sequence[str], before: int, progress: Progress) -> Pixels:
    """The images of several sheets, (count, height, width, channels)."""
    read = []
    for number, sheet in enumerate(sheets, start=before + 1):
        read.append(_sheet(folder / sheet))
        progress.advance(number)
    return np.concatenate(read)


def _sheet(place: Path) -> Pixels:
    """The images of a sheet, (count, height, width, channels)."""
    pixels = read_png(read_bytes(place), str(place))
    if pixels.shape[1:] != (SIDE * SIDE, 3):
        raise GradleakError(f"{place} is not a sheet of CIFAR-10: its lines are no images of {SIDE} x {SIDE}")
    return pixels.reshape(-1, SIDE, SIDE, 3)


def _labels(place: Path, count: int) -> NDArray[np.uint8]:
    try:
        labels = json.loads(read_text(place))
    except (ValueError, RecursionError) as error:
        raise GradleakError(f"{place} is not a JSON file") from error
    known = isinstance(labels, list) and all(type(label) is int and 0 <= label < CLASSES for label in labels)
    if not known or len(labels) != count:
        raise GradleakError(f"{place} does not hold a class from 0 to {CLASSES - 1} for each of {count:,} images")
    return np.array(labels, dtype=np.uint8)
