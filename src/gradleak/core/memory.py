"""How many rows fit into the memory that may be used."""

from __future__ import annotations

import re
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gradleak.core.errors import GradleakError

if TYPE_CHECKING:
    import torch

# The share of free memory that is used by default.
SHARE = 0.5
# What needs less than this is not refused: the interpreter itself takes more.
LITTLE = 64 << 20
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def parse_memory(text: str) -> int:
    """Bytes of an amount such as 800MB or 4GB.

    >>> parse_memory("4GB"), parse_memory("1.5g"), parse_memory("800 MB")
    (4294967296, 1610612736, 838860800)
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmg]?)i?b?\s*", text.lower())
    if not match or not 0 < float(match[1]) < float("inf"):
        raise GradleakError(f"{text!r} is not an amount of memory; write 800MB or 4GB")
    return int(float(match[1]) * _UNITS[match[2]])


_allowance: int | None = None
_bound: int | None = None


@contextmanager
def within(bound: int | None) -> Iterator[None]:
    """Inside the block this process plans to hold at most so many bytes, those that it holds already among them.

    What is meant is memory that cannot be dropped: pages of mapped files do not count. None leaves it as it is.
    """
    global _bound
    before = _bound
    _bound = before if bound is None else bound
    try:
        yield
    finally:
        _bound = before


def plan_with(allowance: int | None) -> None:
    """From now on this process plans with this many bytes, whatever is free: other processes count on the rest."""
    global _allowance
    _allowance = allowance


def free_memory(device: torch.device) -> int:
    """Bytes that are free now, or that `plan_with` has set; never more than `within` leaves."""
    if device.type == "cuda":
        import torch

        return int(torch.cuda.mem_get_info(device)[0]) if _allowance is None else _allowance
    free = _system_memory() if _allowance is None else _allowance
    return free if _bound is None else max(0, min(free, _bound - held_memory()))


def require(needed: int, device: torch.device, what: str, instead: str) -> None:
    """Refuse work that does not fit into memory before it begins, with the number and with what to do instead."""
    free = free_memory(device)
    if needed > max(free, LITTLE):
        where = "are free" if _bound is None else f"are left of the {_bound / 1e9:,.1f} GB of --memory"
        raise GradleakError(f"{what} needs {needed / 1e9:,.2f} GB of memory; {free / 1e9:,.2f} GB {where}; {instead}")


def held_memory() -> int:
    """Bytes that this process holds now and that cannot be dropped; its peak where that is not known."""
    lines = _lines("/proc/self/status")
    known = next((int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon:")), None)
    if known is not None:
        return known
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak << 10


def _system_memory() -> int:
    lines = _lines("/proc/meminfo")
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable")), 4 << 30)


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []
