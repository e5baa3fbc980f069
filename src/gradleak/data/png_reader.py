"""PNG files of others, read in plain Python and numpy: bytes of one or three channels, not interlaced.

Every line of a PNG is stored as what is left after a guess from the pixels before it and above it. Undone pixel by
pixel that takes minutes for a large sheet, so all pixels on a diagonal are undone at once: they need only those of
the diagonals before.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from gradleak.core.errors import GradleakError
from gradleak.data.png import MAX_PIXELS, SIGNATURE, Pixels

_CHANNELS = {0: 1, 2: 3}  # of PNG's colour types: grey, colours
_LAST_FILTER = 4


def read_png(data: bytes, what: str = "the image") -> Pixels:
    """The pixels of a PNG file, as (height, width, channels); `what` is its name in errors.

    >>> from gradleak.data.png import to_png
    >>> read_png(to_png(np.full((3, 2, 5), 7, dtype=np.uint8))).shape
    (2, 5, 3)
    """
    try:
        return _read(data)
    except (ValueError, struct.error, zlib.error) as error:
        raise GradleakError(f"{what} is not a PNG that gradleak can read: {error}") from error


def _read(data: bytes) -> Pixels:
    if not data.startswith(SIGNATURE):
        raise ValueError("it does not begin as one")
    chunks = _chunks(data)
    name, header = next(chunks, (b"", b""))
    if name != b"IHDR" or len(header) != 13:
        raise ValueError("it has no header")
    width, height, depth, kind, _, _, interlaced = struct.unpack(">IIBBBBB", header)
    channels = _CHANNELS.get(kind)
    if depth != 8 or channels is None or interlaced:
        raise ValueError("it is not plain bytes of grey or of three colours")
    if not 0 < width * height <= MAX_PIXELS:
        raise ValueError(f"{width} x {height} pixels are too many, or none")
    size = height * (width * channels + 1)
    packed = b"".join(content for name, content in chunks if name == b"IDAT")
    raw = zlib.decompressobj().decompress(packed, size + 1)
    if len(raw) != size:
        raise ValueError("its image data have the wrong size")
    lines = np.frombuffer(raw, dtype=np.uint8).reshape(height, width * channels + 1)
    if lines[:, 0].max() > _LAST_FILTER:
        raise ValueError("a line has an unknown filter")
    return _unfiltered(lines[:, 0], lines[:, 1:].reshape(height, width, channels))


def _chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Names and contents, whose checksums are right, up to the end of the image."""
    place = len(SIGNATURE)
    while place < len(data):
        length, name = struct.unpack(">I4s", data[place : place + 8])
        content = data[place + 8 : place + 8 + length]
        (checksum,) = struct.unpack(">I", data[place + 8 + length : place + 12 + length])
        if zlib.crc32(content, zlib.crc32(name)) != checksum:
            raise ValueError("a part of it is damaged")
        if name == b"IEND":
            return
        yield name, content
        place += 12 + length
    raise ValueError("it ends too early")


def _unfiltered(filters: NDArray[np.uint8], left_over: Pixels) -> Pixels:
    """What is left over of every pixel, plus the guess that the filter of its line makes."""
    height, width, channels = left_over.shape
    if not filters.any():
        return left_over.copy()
    # A border of zeros above and on the left, as the format has it. Diagonals are slices of the flat array.
    out = np.zeros((height + 1, width + 1, channels), dtype=np.uint8)
    out[1:, 1:] = left_over
    flat = out.reshape(-1, channels)
    for diagonal in range(height + width - 1):
        first, last = max(0, diagonal - width + 1), min(diagonal, height - 1)
        begin, count = (first + 1) * (width + 1) + diagonal - first + 1, last - first + 1

        def along(start: int, count: int = count) -> NDArray[np.uint8]:
            return flat[start : start + (count - 1) * width + 1 : width]

        left, up, both = along(begin - 1), along(begin - width - 1), along(begin - width - 2)
        here = along(begin)
        here += _guess(filters[first : last + 1, None], left, up, both)
    return out[1:, 1:].copy()


def _guess(
    filters: NDArray[np.uint8], left: NDArray[np.uint8], up: NDArray[np.uint8], both: NDArray[np.uint8]
) -> NDArray[np.uint8]:
    """Of filters 0 to 4: nothing, the left pixel, the upper one, their mean, the nearest to left + up - both."""
    a, b, c = left.astype(np.int16), up.astype(np.int16), both.astype(np.int16)
    from_left, from_up = abs(b - c), abs(a - c)
    from_both = abs(a + b - 2 * c)
    nearest = np.where((from_left <= from_up) & (from_left <= from_both), a, np.where(from_up <= from_both, b, c))
    return np.choose(filters, [np.zeros_like(a), a, b, (a + b) // 2, nearest]).astype(np.uint8)
