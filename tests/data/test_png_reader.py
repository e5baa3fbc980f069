"""PNG files of others: every filter is undone as a slow reader does it, anything else is refused."""

import contextlib
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sheets import filtered_png, part

from gradleak import GradleakError
from gradleak.data.png import SIGNATURE, to_png
from gradleak.data.png_reader import read_png


def header(width, height, depth=8, kind=2, interlaced=0):
    return part(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, interlaced))


def png(head, raw, end=True):
    return SIGNATURE + head + part(b"IDAT", zlib.compress(raw)) + (part(b"IEND", b"") if end else b"")


@given(st.integers(1, 9), st.integers(1, 9), st.sampled_from([1, 3]), st.integers(0, 2**32 - 1), st.booleans())
def test_every_filter_is_undone(height, width, channels, seed, smooth):
    """The writer takes guesses from the true pixels, one pixel after the other."""
    random = np.random.default_rng(seed)
    pixels = random.integers(0, 256, (height, width, channels), dtype=np.uint8)
    if smooth:  # where guesses are near one another
        pixels = (pixels // 64 + 100).astype(np.uint8)
    filters = random.integers(0, 5, height)
    assert np.array_equal(read_png(filtered_png(pixels, filters)), pixels)


def test_what_gradleak_writes_is_read():
    pixels = np.random.default_rng(0).integers(0, 256, (3, 4, 5), dtype=np.uint8)
    assert np.array_equal(read_png(to_png(pixels)), pixels.transpose(1, 2, 0))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"GIF89a", "does not begin as one"),
        (SIGNATURE, "ends too early"),
        (SIGNATURE + part(b"IEND", b""), "no header"),
        (SIGNATURE + b"\0\0\0", "read"),
        (png(header(1, 1, depth=16), bytes(4)), "not plain bytes"),
        (png(header(1, 1, kind=3), bytes(4)), "not plain bytes"),
        (png(header(1, 1, interlaced=1), bytes(4)), "not plain bytes"),
        (png(header(1 << 20, 1 << 20), bytes(4)), "too many"),
        (png(header(0, 1), bytes(4)), "too many, or none"),
        (png(header(1, 1), bytes(3)), "wrong size"),
        (png(header(1, 1), bytes(1 << 20)), "wrong size"),
        (png(header(1, 1), b"\5\0\0\0"), "unknown filter"),
        (png(header(1, 1), bytes(4), end=False), "ends too early"),
        (png(header(1, 1), bytes(4))[:-20] + bytes(20), "damaged"),
        (SIGNATURE + header(1, 1) + part(b"IDAT", b"not packed") + part(b"IEND", b""), "cannot|can read"),
    ],
)
def test_anything_else_is_refused(data, message):
    with pytest.raises(GradleakError, match=message):
        read_png(data)


@given(st.integers(0, 200), st.integers(0, 255))
def test_a_changed_byte_is_an_error_or_changes_nothing(place, value):
    pixels = np.arange(60, dtype=np.uint8).reshape(4, 5, 3)
    data = bytearray(filtered_png(pixels, [0, 1, 2, 4]))
    data[place % len(data)] = value
    with contextlib.suppress(GradleakError):
        assert np.array_equal(read_png(bytes(data)), pixels)
