"""Safetensors files read as hostile input: nothing is loaded before every claim of the header is checked."""

from __future__ import annotations

import contextlib
import math
import mmap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from gradleak.core.errors import GradleakError
from gradleak.core.reading import parse_table

MAX_HEADER_BYTES = 16 << 20
MAX_TENSORS = 50_000
FLOATS = {"F16": 2, "BF16": 2, "F32": 4, "F64": 8}
# What checkpoints hold beside floating-point numbers: positions, masks, quantised weights.
OTHERS = {"BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "I16": 2, "U16": 2, "I32": 4, "U32": 4, "I64": 8,
          "U64": 8}  # fmt: skip

# Files from this size on are mapped: their tensors come from the disk when they are looked at, and no sooner.
MAPPED_FROM = 64 << 20
TORCH_TYPES = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64,
               "U8": torch.uint8}  # fmt: skip

# Name, dtype and shape of every tensor.
Header = dict[str, tuple[str, tuple[int, ...]]]


def read_header(path: Path, types: Mapping[str, int] = FLOATS) -> Header:
    """What a file holds, with every claim of its header checked before anything is loaded.

    `types` are the dtypes it may have, with their bytes a number.
    """
    size = path.stat().st_size
    with path.open("rb") as stream:
        start = stream.read(8)
        length = int.from_bytes(start, "little") if len(start) == 8 else -1
        if MAX_HEADER_BYTES < length < 1 << 40:
            raise GradleakError(f"{path}: its header claims {length:,} bytes; {MAX_HEADER_BYTES:,} is the limit")
        if length < 2 or length > size - 8:
            raise GradleakError(f"{path} is not a safetensors file, or it is cut short")
        raw = stream.read(length)
    entries = _parse_header(path, raw)
    if len(entries) > MAX_TENSORS:
        raise GradleakError(f"{path}: its header claims {len(entries):,} tensors; {MAX_TENSORS:,} is the limit")
    described = {name: _describe(path, name, entry, types) for name, entry in entries.items()}
    expected = sum(types[dtype] * math.prod(shape) for dtype, shape in described.values())
    if expected != size - 8 - length:
        raise GradleakError(
            f"{path}: its tensors need {expected:,} bytes, the file holds {size - 8 - length:,}; is it cut short?"
        )
    if not described:
        raise GradleakError(f"{path} holds no tensors")
    return described


def _parse_header(path: Path, raw: bytes) -> dict[str, Any]:
    try:
        header = parse_table(raw)
    except ValueError as error:
        raise GradleakError(f"{path} is not a safetensors file: its header cannot be read: {error}") from error
    return {name: entry for name, entry in header.items() if name != "__metadata__"}


def _describe(path: Path, name: str, entry: object, types: Mapping[str, int]) -> tuple[str, tuple[int, ...]]:
    if not isinstance(entry, dict) or not isinstance(entry.get("shape"), list):
        raise GradleakError(f"{path}: the header entry of tensor {quoted(name)} is malformed")
    dtype, shape = entry.get("dtype"), entry["shape"]
    if not isinstance(dtype, str) or dtype not in types:
        raise GradleakError(
            f"{path}: tensor {quoted(name)} is of type {str(dtype)[:20]}, not a floating-point number"
        )
    if len(shape) > 8 or not all(type(n) is int and 0 <= n < 1 << 40 for n in shape):
        raise GradleakError(f"{path}: tensor {quoted(name)} claims the shape {str(shape)[:60]}")
    return str(dtype), tuple(shape)


def is_large(path: Path) -> bool:
    """Whether a file is mapped rather than read."""
    return path.stat().st_size >= MAPPED_FROM


def open_tensors(path: Path) -> Mapping[str, Tensor]:
    """The floating-point tensors of a safetensors file as fp32: read at once, or mapped if the file is large.

    NaN and infinities are errors.
    """
    if not is_large(path):
        return read_tensors(path)
    mapped = MappedTensors(path)
    with _naming(path):
        check_finite(mapped)
    return mapped


def read_tensors(path: Path, types: Mapping[str, int] = FLOATS) -> dict[str, Tensor]:
    """The floating-point tensors of a safetensors file as fp32, once its header is in order.

    NaN and infinities are errors.
    """
    from safetensors import SafetensorError, safe_open

    held = [name for name, (dtype, _) in read_header(path, types).items() if dtype in FLOATS]
    try:
        with safe_open(str(path), "pt") as file:
            tensors = {name: file.get_tensor(name) for name in held}
    except (SafetensorError, OSError, ValueError) as error:
        raise GradleakError(f"{path} cannot be read: {error}") from error
    with _naming(path):
        check_finite(tensors)
    return {name: tensor.float() for name, tensor in tensors.items()}


class _Place(NamedTuple):
    """Where a tensor lies in a file, in bytes."""

    dtype: str
    shape: tuple[int, ...]
    first: int
    end: int


class MappedTensors(Mapping[str, Tensor]):
    """The floating-point tensors of a large safetensors file; each comes from the disk when it is asked for.

    They are fp32: views of the mapped file where that holds fp32, converted anew each time where it does not. The
    system may drop their pages at any moment and read them again. Writing to one changes this process's copy alone.
    The file may be deleted meanwhile, but whoever overwrites it in place changes what is read.
    """

    def __init__(self, path: Path, types: Mapping[str, int] = FLOATS) -> None:
        self.path, self.finite = path, False  # whether it is known to hold neither NaN nor infinities
        read_header(path, types)
        self._places = _places(path, types)
        with path.open("rb") as stream:
            self._map = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY)
        self._in_use: WeakValueDictionary[str, Tensor] = WeakValueDictionary()

    def __getitem__(self, name: str) -> Tensor:
        """As long as somebody holds a tensor, its name gives the same one, as in a dictionary."""
        tensor = self._in_use.get(name)
        if tensor is None:
            tensor = self._in_use[name] = self.as_saved(name).float()
        return tensor

    def __iter__(self) -> Iterator[str]:
        return (name for name, place in self._places.items() if place.dtype in FLOATS)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def everything(self) -> dict[str, Tensor]:
        """All that the file holds, in the types that it has there, bytes of quantised weights too."""
        return {name: self.as_saved(name) for name, place in self._places.items() if place.dtype in TORCH_TYPES}

    def __contains__(self, name: object) -> bool:  # without reading it
        return name in self._places and self._places[str(name)].dtype in FLOATS

    def as_saved(self, name: str) -> Tensor:
        """A tensor in the type that it has in the file, as a view of it."""
        dtype, shape, first, end = self._places[name]
        if first == end:
            return torch.empty(shape, dtype=TORCH_TYPES[dtype])
        flat = torch.frombuffer(self._map, dtype=torch.uint8, count=end - first, offset=first)
        if first % FLOATS.get(dtype, 1):  # numbers that do not begin where numbers can
            flat = flat.clone()
        return flat.view(TORCH_TYPES[dtype]).view(shape)

    def saved_type(self, name: str) -> torch.dtype:
        return TORCH_TYPES[self._places[name].dtype]

    def shape(self, name: str) -> tuple[int, ...]:
        return self._places[name].shape

    def let_go(self, name: str) -> None:
        """Tell the system that a tensor's pages are not needed for now; they are read again if they are."""
        _, _, first, end = self._places[name]
        begin = -(-first // mmap.PAGESIZE) * mmap.PAGESIZE
        length = end // mmap.PAGESIZE * mmap.PAGESIZE - begin
        if length > 0 and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED, begin, length)


def _places(path: Path, types: Mapping[str, int]) -> dict[str, _Place]:
    """Where the tensors of a file lie. The library has the last word on whether its header is in order."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), "pt"):
            pass
    except (SafetensorError, OSError, ValueError) as error:
        raise GradleakError(f"{path} cannot be read: {error}") from error
    with path.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        entries = _parse_header(path, stream.read(length))
    places, size = {}, path.stat().st_size
    for name, entry in entries.items():
        dtype, shape = _describe(path, name, entry, types)
        offsets = entry.get("data_offsets")
        if not isinstance(offsets, list) or len(offsets) != 2 or not all(type(n) is int and n >= 0 for n in offsets):
            raise GradleakError(f"{path}: the header entry of tensor {quoted(name)} is malformed")
        first, end = (8 + length + offset for offset in offsets)
        if end - first != types[dtype] * math.prod(shape) or end > size:
            raise GradleakError(f"{path}: tensor {quoted(name)} does not lie where its header says")
        places[name] = _Place(dtype, shape, first, end)
    return places


def one_by_one(tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """All tensors, for work that needs them one after the other: of a mapped file only one is kept in memory."""
    for name in tensors:
        yield name, tensors[name]
        if isinstance(tensors, MappedTensors):
            tensors.let_go(name)


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Say of which file an error is."""
    try:
        yield
    except GradleakError as error:
        raise GradleakError(f"{path}: {error}") from error


def is_finite(tensor: Tensor) -> bool:
    """Whether all numbers are finite.

    A finite sum takes one pass and no memory, and is proof; that of finite numbers can still be too large.
    """
    return bool(torch.isfinite(tensor.sum())) or bool(torch.isfinite(tensor).all())


def check_finite(tensors: Mapping[str, Tensor]) -> None:
    """Refuse NaN and infinities: nothing can be read from them, and a training that has diverged sends them."""
    if isinstance(tensors, MappedTensors) and tensors.finite:
        return
    for name, tensor in one_by_one(tensors):
        if not is_finite(tensor):
            raise GradleakError(f"tensor {quoted(name)} holds NaN or infinite values")
    if isinstance(tensors, MappedTensors):
        tensors.finite = True


def quoted(name: str) -> str:
    """A tensor's name as messages show it, however long a file made it."""
    return repr(name if len(name) <= 80 else name[:77] + "...")
