"""Images with their classes: the private ones of an audit, and the auxiliary ones that an attacker holds."""

from __future__ import annotations

import functools
import hashlib
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradleak.core.errors import GradleakError
from gradleak.data.png import Pixels, from_uri, to_uri

MAX_BYTES = 4 << 30
PRIVATE, AUXILIARY = ("x_test", "y_test"), ("x_train", "y_train")


@dataclass(frozen=True)
class Pictures:
    """Images as bytes, (count, channels, height, width), with their classes."""

    pixels: Pixels
    labels: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.pixels)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.pixels.shape[1:])

    def values(self, device: torch.device | str = "cpu") -> Tensor:
        """The images as models take them, from 0 to 1."""
        return torch.from_numpy(self.pixels).to(device).float() / 255

    def some(self, chosen: Sequence[int]) -> Pictures:
        return Pictures(self.pixels[list(chosen)], tuple(self.labels[i] for i in chosen))

    def without(self, others: Pictures) -> Pictures:
        """Those that are not among the others, to the byte."""
        there = {image.tobytes() for image in others.pixels}
        return self.some([i for i, image in enumerate(self.pixels) if image.tobytes() not in there])

    def uris(self) -> list[str]:
        return [to_uri(image) for image in self.pixels]

    @functools.cached_property
    def mean(self) -> Tensor:
        """The mean image, from 0 to 1; kept, because of 50,000 images it takes a while."""
        return torch.from_numpy(self.pixels.mean(axis=0, dtype=np.float64) / 255).float()

    @functools.cached_property
    def digest(self) -> str:
        """A hash of all images and classes."""
        digest = hashlib.sha256(repr((self.pixels.shape, self.labels)).encode())
        digest.update(np.ascontiguousarray(self.pixels).tobytes())
        return digest.hexdigest()[:32]


def to_bytes(values: Tensor) -> Pixels:
    """Values from 0 to 1 as bytes; what is outside is cut off.

    >>> to_bytes(torch.tensor([-1.0, 0.5, 2.0])).tolist()
    [0, 128, 255]
    """
    return (values.detach().clamp(0, 1) * 255).round().to(torch.uint8).cpu().numpy()


def from_uris(texts: Sequence[str]) -> Pixels:
    """Images that `to_uri` wrote, all of one shape."""
    images = [from_uri(text) for text in texts]
    if len({image.shape for image in images}) > 1:
        raise GradleakError("the images differ in shape")
    return np.stack(images)


def read_pictures(path: str | Path) -> tuple[Pictures, Pictures | None]:
    """The private images of an .npz file, and its auxiliary ones if it has any.

    The file holds `x_test` and `y_test`, which are audited, and may hold `x_train` and `y_train`, which the attacker
    gets: bytes, (count, height, width) or with channels last. Auxiliary images that are also private are left out.
    """
    place = Path(path)
    if not place.is_file():
        raise GradleakError(f"no data file at {place}")
    try:
        with zipfile.ZipFile(place) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > MAX_BYTES:
                raise GradleakError(f"{place} holds more than {MAX_BYTES >> 30} GB")
        with np.load(place, allow_pickle=False) as arrays:
            stored = {key: arrays[key] for key in (*PRIVATE, *AUXILIARY) if key in arrays.files}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise GradleakError(f"{place} is not an .npz file of plain arrays") from error
    private = _pictures(place, stored, *PRIVATE)
    if private is None:
        raise GradleakError(f"{place} holds no {PRIVATE[0]} with the images to audit")
    auxiliary = _pictures(place, stored, *AUXILIARY)
    if auxiliary is not None and auxiliary.shape != private.shape:
        raise GradleakError(f"{place}: images of {AUXILIARY[0]} and {PRIVATE[0]} differ in shape")
    return disjoint(private, auxiliary)


def disjoint(private: Pictures, auxiliary: Pictures | None) -> tuple[Pictures, Pictures | None]:
    """Both, without auxiliary images that are private too: whoever holds an image need not read it off an update."""
    return private, auxiliary.without(private) or None if auxiliary else None


def _pictures(place: Path, arrays: dict[str, Any], images: str, classes: str) -> Pictures | None:
    if images not in arrays:
        return None
    pixels, labels = arrays[images], arrays.get(classes)
    if pixels.dtype != np.uint8 or pixels.ndim not in (3, 4) or not len(pixels):
        raise GradleakError(f"{place}: {images} is not an array of images of bytes, (count, height, width, channels)")
    if labels is None or labels.shape != (len(pixels),) or labels.dtype.kind not in "iu":
        raise GradleakError(f"{place}: {classes} is not one class number per image of {images}")
    pixels = pixels[..., None] if pixels.ndim == 3 else pixels
    return Pictures(np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)), tuple(int(label) for label in labels))
