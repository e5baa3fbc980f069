"""Peak memory of a piece of work."""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import torch

MEGABYTE = 1 << 20


@dataclass
class Peak:
    """Filled in when the measured block ends."""

    megabytes: float | None = None


@contextmanager
def peak_memory(device: torch.device) -> Iterator[Peak]:
    """Measure the peak inside the block: of the device on CUDA, else of this process.

    Linux lets a process reset its own high-water mark; elsewhere the mark of the whole run is given.
    """
    peak = Peak()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    else:
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")
    try:
        yield peak
    finally:
        if device.type == "cuda":
            peak.megabytes = torch.cuda.max_memory_allocated(device) / MEGABYTE
        else:
            peak.megabytes = _process_peak()


def _process_peak() -> float:
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used / MEGABYTE if sys.platform == "darwin" else used / 1024
