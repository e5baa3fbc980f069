"""Headers of safetensors files are checked before anything is loaded."""

import struct

import pytest

from gradleak import GradleakError
from gradleak.core.tensor_files import read_header


@pytest.mark.parametrize(
    "header",
    [
        b"[]",
        b'"text"',
        b"{" * 5000,
        b'{"a": 5}',
        b'{"a": {"dtype": "F32", "shape": "no"}}',
        b'{"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}',
        b'{"a": {"dtype": "F32", "shape": [1e400], "data_offsets": [0, 4]}}',
        b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}, "a": {"dtype": "F32", "shape": [1]}}',
        b'{"a": {"dtype": "F32", "shape": [4294967295, 4294967295], "data_offsets": [0, 4]}}',
        b"\xff\xfe\xfa",
    ],
)
def test_malformed_headers(tmp_path, header):
    path = tmp_path / "x.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + b"\x00" * 4)
    with pytest.raises(GradleakError):
        read_header(path)
