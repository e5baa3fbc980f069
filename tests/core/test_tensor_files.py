"""Headers of safetensors files are checked before anything is loaded."""

import json
import struct

import pytest
import torch
from safetensors.torch import save_file

from gradleak import GradleakError
from gradleak.core.tensor_files import MappedTensors, one_by_one, open_tensors, read_header, read_tensors


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


TYPES = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64}


def _file(path, entries, data, pad=0):
    header = json.dumps(entries).encode() + b" " * pad
    path.write_bytes(struct.pack("<Q", len(header)) + header + data)
    return path


@pytest.mark.parametrize("kind", TYPES.values())
def test_a_mapped_file_has_the_numbers_of_one_that_is_read(tmp_path, kind):
    tensors = {"a": torch.randn(3, 4).to(kind), "b": torch.randn(5).to(kind), "none": torch.zeros(0, 2).to(kind)}
    save_file(tensors, tmp_path / "x.safetensors")
    mapped, read = MappedTensors(tmp_path / "x.safetensors"), read_tensors(tmp_path / "x.safetensors")
    assert list(mapped) == list(read)
    assert len(mapped) == 3
    assert "a" in mapped
    assert "c" not in mapped
    for name in read:
        assert torch.equal(mapped[name], read[name])
        assert mapped[name].dtype == torch.float32
        assert mapped.as_saved(name).dtype == kind
        assert mapped.shape(name) == tuple(read[name].shape)


@pytest.mark.parametrize("pad", range(1, 4))
def test_numbers_that_begin_anywhere_are_read(tmp_path, pad):
    """Headers need not end at a multiple of four bytes."""
    entry = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    mapped = MappedTensors(_file(tmp_path / "x", {"a": entry}, struct.pack("<2f", 1.5, -2.0), pad))
    assert mapped["a"].tolist() == [1.5, -2.0]


def test_what_is_let_go_comes_back_and_what_is_written_stays_here(tmp_path):
    save_file({"a": torch.arange(100_000.0)}, tmp_path / "x.safetensors")
    mapped = MappedTensors(tmp_path / "x.safetensors")
    for name, tensor in one_by_one(mapped):
        assert float(tensor.sum()) == float(torch.arange(100_000.0).sum())
        mapped.let_go(name)
        assert torch.equal(tensor, torch.arange(100_000.0))
    mapped["a"][5] = -1.0
    assert float(MappedTensors(tmp_path / "x.safetensors")["a"][5]) == 5.0
    (tmp_path / "x.safetensors").unlink()
    assert float(mapped["a"][99_999]) == 99_999.0


@pytest.mark.parametrize(
    "offsets",
    [[0, 4], [4, 12], [-8, 0], [8, 0], [0], "no", None, [0.0, 8.0], [True, 8], [0, 8, 8], [10**30, 10**30 + 8]],
)
def test_tensors_that_lie_elsewhere_are_refused(tmp_path, offsets):
    path = _file(tmp_path / "x", {"a": {"dtype": "F32", "shape": [2], "data_offsets": offsets}}, bytes(8))
    with pytest.raises(GradleakError):
        MappedTensors(path)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_large_files_are_mapped_and_checked(tmp_path, monkeypatch, value):
    monkeypatch.setattr("gradleak.core.tensor_files.MAPPED_FROM", 1)
    save_file({"a": torch.ones(4), "b": torch.full((3,), value)}, tmp_path / "x.safetensors")
    with pytest.raises(GradleakError, match=r"x\.safetensors: tensor 'b' holds NaN or infinite"):
        open_tensors(tmp_path / "x.safetensors")
    save_file({"a": torch.ones(4)}, tmp_path / "x.safetensors")
    opened = open_tensors(tmp_path / "x.safetensors")
    assert isinstance(opened, MappedTensors)
    assert opened.finite
    assert opened["a"].tolist() == [1.0] * 4


def test_a_mapped_tensor_that_is_held_is_the_same_one_again(tmp_path):
    """`bag` asks whether the output layer and the token embedding are one: it took a tied table for two."""
    save_file({"a": torch.randn(3, 2)}, tmp_path / "x.safetensors")
    mapped = MappedTensors(tmp_path / "x.safetensors")
    held = mapped["a"]
    assert mapped.get("a") is held
