"""How many rows fit into the memory that may be used."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from gradleak.core.errors import GradleakError

# The share of free memory that is used by default.
SHARE = 0.5
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


def plan_with(allowance: int | None) -> None:
    """From now on this process plans with this many bytes, whatever is free: other processes count on the rest."""
    global _allowance
    _allowance = allowance


def free_memory(device: torch.device) -> int:
    """Bytes that are free now, or that `plan_with` has set."""
    if _allowance is not None:
        return _allowance
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return 4 << 30
