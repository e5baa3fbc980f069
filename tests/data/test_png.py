"""PNGs: what goes in comes out, anything else is refused."""

import base64
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from gradleak import GradleakError
from gradleak.data.png import PREFIX, from_uri, to_png, to_uri

IMAGES = hnp.arrays(
    np.uint8, st.tuples(st.sampled_from([1, 3]), st.integers(1, 9), st.integers(1, 9)), elements=st.integers(0, 255)
)


@given(IMAGES)
def test_a_png_keeps_every_pixel(pixels):
    assert np.array_equal(from_uri(to_uri(pixels)), pixels)


@given(IMAGES)
def test_a_png_is_one_by_the_standard(pixels):
    """Every chunk has its length and checksum; the data unpacks to a filter byte and a line of pixels a row."""
    data, chunks, place = to_png(pixels), {}, 8
    while place < len(data):
        (size,) = struct.unpack(">I", data[place : place + 4])
        name, body = data[place + 4 : place + 8], data[place + 8 : place + 8 + size]
        assert struct.unpack(">I", data[place + 8 + size : place + 12 + size]) == (zlib.crc32(name + body),)
        chunks[name], place = body, place + 12 + size
    channels, height, width = pixels.shape
    assert list(chunks) == [b"IHDR", b"IDAT", b"IEND"]
    assert chunks[b"IHDR"] == struct.pack(">IIBBBBB", width, height, 8, 2 if channels == 3 else 0, 0, 0, 0)
    assert len(zlib.decompress(chunks[b"IDAT"])) == height * (1 + width * channels)


@given(st.text(max_size=40) | st.text(max_size=40).map(PREFIX.__add__))
def test_other_texts_are_refused(text):
    with pytest.raises(GradleakError, match="not an image that gradleak wrote"):
        from_uri(text)


def test_hostile_pngs_are_refused():
    good = to_png(np.zeros((1, 2, 2), dtype=np.uint8))

    def uri(data):
        return PREFIX + base64.b64encode(data).decode()

    assert from_uri(uri(good)).shape == (1, 2, 2)
    wide = good.replace(struct.pack(">II", 2, 2), struct.pack(">II", 1 << 30, 1 << 30), 1)
    for data in (wide, good[:40], good[:45] + b"\0" * 20):
        with pytest.raises(GradleakError):
            from_uri(uri(data))
    with pytest.raises(GradleakError, match="2 channels"):
        to_png(np.zeros((2, 4, 4), dtype=np.uint8))
