"""Safetensors files read as hostile input: nothing is loaded before every claim of the header is checked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
    try:
        check_finite(tensors)
    except GradleakError as error:
        raise GradleakError(f"{path}: {error}") from error
    return {name: tensor.float() for name, tensor in tensors.items()}


def check_finite(tensors: Mapping[str, Tensor]) -> None:
    """Refuse NaN and infinities: nothing can be read from them, and a training that has diverged sends them."""
    for name, tensor in tensors.items():
        # A finite sum takes one pass and is proof; that of finite numbers can still be too large.
        if not bool(torch.isfinite(tensor.sum())) and not bool(torch.isfinite(tensor).all()):
            raise GradleakError(f"tensor {quoted(name)} holds NaN or infinite values")


def quoted(name: str) -> str:
    """A tensor's name as messages show it, however long a file made it."""
    return repr(name if len(name) <= 80 else name[:77] + "...")
