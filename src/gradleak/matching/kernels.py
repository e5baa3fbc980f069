"""Which library multiplies matrices on a processor.

Torch has two, and on many processors the second is faster by a fifth for large matrices and by half for small
ones. Torch chooses it only where lower precision is allowed; whether it then really lowers the precision
depends on the processor. So it is tried once, and used only where it is exact.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch


@contextmanager
def fastest_products(device: torch.device) -> Iterator[None]:
    """The faster library inside, if it keeps single precision here."""
    if device.type != "cpu" or not second_library_is_exact():
        yield
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@cache
def second_library_is_exact() -> bool:
    """Whether products under the lower setting are as good as single precision gets."""
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(128, 256, generator=generator) for _ in range(2))
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        product = (a @ b.T).double()
    finally:
        torch.set_float32_matmul_precision(before)
    exact = a.double() @ b.double().T
    return bool((product - exact).norm() < 1e-5 * exact.norm())
