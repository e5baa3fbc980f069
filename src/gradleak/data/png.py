"""Small images as PNG text for results and pages, written and read with the standard library alone."""

from __future__ import annotations

import base64
import binascii
import struct
import zlib

import numpy as np
from numpy.typing import NDArray

from gradleak.core.errors import GradleakError

PREFIX = "data:image/png;base64,"
MAX_PIXELS = 1 << 24
SIGNATURE = b"\x89PNG\r\n\x1a\n"
_GREY, _COLOUR = 0, 2  # PNG's colour types

Pixels = NDArray[np.uint8]


def to_png(pixels: Pixels) -> bytes:
    """A PNG file of pixels given as (channels, height, width); one channel is grey, three are colours.

    >>> to_png(np.zeros((3, 2, 2), dtype=np.uint8))[1:4]
    b'PNG'
    """
    channels, height, width = pixels.shape
    if channels not in (1, 3):
        raise GradleakError(f"an image of {channels} channels cannot be shown; 1 or 3 can")
    lines = pixels.transpose(1, 2, 0).reshape(height, width * channels)
    # Every line begins with the number of its filter; 0 is none.
    raw = np.concatenate([np.zeros((height, 1), dtype=np.uint8), lines], axis=1).tobytes()
    header = struct.pack(">IIBBBBB", width, height, 8, _GREY if channels == 1 else _COLOUR, 0, 0, 0)
    return SIGNATURE + _chunk(b"IHDR", header) + _chunk(b"IDAT", zlib.compress(raw, level=9)) + _chunk(b"IEND", b"")


def to_uri(pixels: Pixels) -> str:
    """The same as text that a page can hold."""
    return PREFIX + base64.b64encode(to_png(pixels)).decode("ascii")


def from_uri(text: str) -> Pixels:
    """The pixels of a text that `to_uri` wrote, as (channels, height, width); anything else is refused.

    >>> int(from_uri(to_uri(np.full((1, 2, 3), 7, dtype=np.uint8))).sum())
    42
    """
    try:
        if not text.startswith(PREFIX):
            raise ValueError("no PNG prefix")
        return _read(base64.b64decode(text[len(PREFIX) :], validate=True))
    except (ValueError, struct.error, zlib.error, binascii.Error) as error:
        raise GradleakError(f"not an image that gradleak wrote: {error}") from error


def _read(data: bytes) -> Pixels:
    if not data.startswith(SIGNATURE + struct.pack(">I", 13) + b"IHDR"):
        raise ValueError("no PNG header")
    width, height, depth, kind = struct.unpack(">IIBB", data[16:26])
    channels = {_GREY: 1, _COLOUR: 3}.get(kind)
    if depth != 8 or channels is None or not 0 < width * height <= MAX_PIXELS:
        raise ValueError("unknown kind of PNG")
    (length,) = struct.unpack(">I", data[33:37])
    if data[37:41] != b"IDAT":
        raise ValueError("no image data")
    size = height * (width * channels + 1)
    raw = zlib.decompressobj().decompress(data[41 : 41 + length], size + 1)
    if len(raw) != size:
        raise ValueError("image data of the wrong size")
    lines = np.frombuffer(raw, dtype=np.uint8).reshape(height, width * channels + 1)
    if lines[:, 0].any():
        raise ValueError("filtered lines")
    return lines[:, 1:].reshape(height, width, channels).transpose(2, 0, 1).copy()


def _chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
