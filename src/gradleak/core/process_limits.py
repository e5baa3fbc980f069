"""Limits of a process of its own that works on what others wrote."""

from __future__ import annotations

import math
from pathlib import Path

MEMORY = Path("/proc/self/statm")


def limit(memory: int, seconds: int, written: int) -> None:
    """Bound what this process may take and write from now on, in bytes, and its time; what it has is extra."""
    try:
        import resource
    except ImportError:  # Windows has none of this; there only the caller's clock holds
        return
    taken = int(MEMORY.read_text().split()[0]) * resource.getpagesize() if MEMORY.is_file() else 8 << 30
    used = resource.getrusage(resource.RUSAGE_SELF)
    bounds = {
        resource.RLIMIT_AS: taken + memory,
        resource.RLIMIT_FSIZE: written,
        resource.RLIMIT_CPU: math.ceil(used.ru_utime + used.ru_stime) + seconds,
        resource.RLIMIT_CORE: 0,
    }
    for kind, bound in bounds.items():
        hard = resource.getrlimit(kind)[1]
        allowed = bound if hard == resource.RLIM_INFINITY else min(bound, hard)
        resource.setrlimit(kind, (allowed, allowed))
