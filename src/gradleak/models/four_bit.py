"""Matrices in four bits a number, as bitsandbytes saves them (NF4 and FP4): read without it, and without trust."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from gradleak.core.errors import GradleakError
from gradleak.core.parameters import validated
from gradleak.core.reading import parse_table
from gradleak.core.tensor_files import quoted

# What stands behind a matrix's name in the name of the tensor that says how it was packed.
STATES = (".quant_state.bitsandbytes__nf4", ".quant_state.bitsandbytes__fp4")
TYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
MOST_BYTES = 4096


class _State(BaseModel):
    """The entries of that tensor, which is a text."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True, allow_inf_nan=False)

    quant_type: Literal["nf4", "fp4"]
    blocksize: int = Field(ge=1, le=1 << 20)
    dtype: Literal["bfloat16", "float16", "float32"]
    shape: list[int] = Field(min_length=2, max_length=2)
    nested_blocksize: int = Field(1, ge=1, le=1 << 20)
    nested_offset: float = 0.0


@dataclass(frozen=True)
class FourBit:
    """A packed matrix: two numbers a byte, each a place in a code, times the largest number of its block."""

    packed: Tensor
    largest: Tensor
    code: Tensor
    block: int
    dtype: torch.dtype
    shape: tuple[int, int]

    def numel(self) -> int:
        return self.shape[0] * self.shape[1]

    def unpacked(self) -> Tensor:
        """The matrix in fp32, with the numbers that bitsandbytes computes with."""
        both = torch.stack([self.packed.view(-1) >> 4, self.packed.view(-1) & 15], dim=1)
        places = both.view(-1)[: self.numel()].int()
        largest = self.largest.repeat_interleave(self.block)[: self.numel()]
        return (self.code[places] * largest).to(self.dtype).view(self.shape).float()


def four_bit_names(names: Iterable[str]) -> dict[str, str]:
    """The names of packed matrices, each with the name of the tensor that says how."""
    return {name.removesuffix(end): name for name in names for end in STATES if name.endswith(end)}


def four_bit(name: str, state: str, tensors: Mapping[str, Tensor]) -> FourBit:
    """The packed matrix of a name; whatever does not fit together is an error."""
    where = f"the 4-bit tensor {quoted(name)}"
    try:
        text = bytes(tensors[state].view(-1)[:MOST_BYTES].tolist())
        about = validated(_State, parse_table(text), where)
    except (ValueError, TypeError) as error:
        raise GradleakError(f"{where}: how it was packed cannot be read") from error
    height, width = about.shape
    if min(about.shape) < 1 or height * width > 1 << 40:
        raise GradleakError(f"{where} claims the shape {about.shape}")
    blocks = math.ceil(height * width / about.blocksize)

    def part(end: str, count: int, kind: torch.dtype) -> Tensor:
        found = tensors.get(name + end)
        if found is None or found.numel() != count or found.dtype != kind:
            raise GradleakError(f"{where}: {quoted(name + end)} does not fit a {kind} tensor of {count:,} numbers")
        return found.view(-1)

    packed = part("", math.ceil(height * width / 2), torch.uint8)
    code = part(".quant_map", 16, torch.float32)
    if f"{name}.nested_absmax" in tensors:
        inner = part(".nested_absmax", math.ceil(blocks / about.nested_blocksize), torch.float32)
        steps = part(".nested_quant_map", 256, torch.float32)[part(".absmax", blocks, torch.uint8).int()]
        largest = steps * inner.repeat_interleave(about.nested_blocksize)[:blocks] + about.nested_offset
    else:
        largest = part(".absmax", blocks, torch.float32)
    if not bool(torch.isfinite(code).all()) or not bool(torch.isfinite(largest).all()):
        raise GradleakError(f"{where} holds NaN or infinite values")
    return FourBit(packed, largest, code, about.blocksize, TYPES[about.dtype], (height, width))
