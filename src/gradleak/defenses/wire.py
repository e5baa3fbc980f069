"""Formats of few bits in which updates are sent: those of NVIDIA FLARE's ModelQuantizer."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Literal

import numpy as np
import scipy  # its parts are loaded when they are first used
import torch
from pydantic import Field
from torch import Tensor

from gradleak.defenses.base import Defense
from gradleak.models.base import Target

Format = Literal["float16", "bfloat16", "blockwise8", "float4", "normfloat4", "adaquant"]

# Numbers that share a largest one, which the code is multiplied with.
EIGHT_BIT_BLOCK, FOUR_BIT_BLOCK = 4096, 64
# How much a bit weighs against an error, of adaquant.
WEIGHT = 0.01
BITS = 32


class WireFormat(Defense):
    summary = (
        "NVFlare's ModelQuantizer: numbers are sent in 16, 8 or 4 bits, or in as many as a tensor's range asks for"
    )
    reveals = "the format, which bounds the error on every number"
    random = False

    format: Format = Field(
        "float16", description="float16, bfloat16, blockwise8, float4, normfloat4 (bitsandbytes'), or adaquant"
    )

    def apply(self, tensors: Mapping[str, Tensor], model: Target, generator: torch.Generator) -> dict[str, Tensor]:
        return {name: FORMATS[self.format](tensor) for name, tensor in tensors.items()}


def half(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """In half precision; what is too large for it is cut off.

    >>> half(torch.tensor([1e6, 0.1]), torch.float16)
    tensor([6.5504e+04, 9.9976e-02])
    """
    most = torch.finfo(dtype).max
    return tensor.clamp(-most, most).to(dtype).to(tensor)


def blockwise(tensor: Tensor, code: Callable[[], Tensor], block: int) -> Tensor:
    """Every number as the nearest one of a code, times the largest number of its block.

    >>> blockwise(torch.tensor([1.0, 0.4, -0.2]), lambda: torch.tensor([-1.0, 0.0, 0.5, 1.0]), 2)
    tensor([ 1.0000,  0.5000, -0.2000])
    """
    levels = code().to(tensor)
    flat = tensor.flatten()
    blocks = torch.nn.functional.pad(flat, (0, -len(flat) % block)).view(-1, block)
    largest = blocks.abs().amax(dim=1, keepdim=True)
    middles = (levels[1:] + levels[:-1]) / 2
    # A block of zeros has no largest number to be divided by; what comes of it is multiplied with zero again.
    places = torch.bucketize(blocks / torch.where(largest > 0, largest, 1.0), middles)
    return (levels[places] * largest).flatten()[: len(flat)].view(tensor.shape)


@functools.cache
def dynamic_code() -> Tensor:
    """256 numbers, denser towards zero: seven decades, each of twice as many equal steps as the one below it."""
    positive = []
    for decade in range(7):
        edges = np.linspace(0.1, 1, 2**decade + 1)
        positive.append(10.0 ** (decade - 6) * (edges[1:] + edges[:-1]) / 2)
    sizes = np.concatenate(positive)
    return torch.tensor(np.sort(np.concatenate([-sizes, [0.0], sizes, [1.0]])), dtype=torch.float)


@functools.cache
def normal_code() -> Tensor:
    """Sixteen quantiles of a normal distribution, zero among them, the largest one 1 (Dettmers et al. 2023)."""
    last = 0.9677083
    above = scipy.special.ndtri(np.linspace(last, 0.5, 9)[:-1])
    below = -scipy.special.ndtri(np.linspace(last, 0.5, 8)[:-1])
    return torch.tensor(np.sort(np.concatenate([below, [0.0], above])) / above.max(), dtype=torch.float)


@functools.cache
def float_code() -> Tensor:
    """A sign, two bits of exponent and one of fraction: what bitsandbytes calls FP4."""
    sizes = torch.tensor([1 / 192, 1 / 6, 1 / 4, 1 / 3, 1 / 2, 2 / 3, 1.0])
    return torch.cat([-sizes.flip(0), torch.zeros(1), sizes])


def adaquant(tensor: Tensor) -> Tensor:
    """Evenly spaced numbers from the smallest to the largest, the more of them the larger the range is.

    A range below 2e-4 leaves no bit at all: the smallest number is sent for all. (NVFlare 2.9 sends NaNs there.)

    >>> adaquant(torch.tensor([0.0, 0.01, 0.022]))
    tensor([0.0000, 0.0103, 0.0220])
    """
    values = tensor.double()
    least = values.min()
    spread = float(values.max() - least)
    wanted = math.ceil(max(1.0, math.sqrt(spread * BITS * math.log(4) / WEIGHT)))
    bits = math.ceil(math.log2(wanted))
    if bits >= BITS:
        return tensor
    steps = 2**bits - 1
    if not spread or not steps:
        return torch.full_like(tensor, float(least))
    return (((values - least) / spread * steps).round() * spread / steps + least).to(tensor)


FORMATS: dict[str, Callable[[Tensor], Tensor]] = {
    "float16": functools.partial(half, dtype=torch.float16),
    "bfloat16": functools.partial(half, dtype=torch.bfloat16),
    "blockwise8": functools.partial(blockwise, code=dynamic_code, block=EIGHT_BIT_BLOCK),
    "float4": functools.partial(blockwise, code=float_code, block=FOUR_BIT_BLOCK),
    "normfloat4": functools.partial(blockwise, code=normal_code, block=FOUR_BIT_BLOCK),
    "adaquant": adaquant,
}
