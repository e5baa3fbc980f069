"""Small pieces of text that messages are made of."""

from __future__ import annotations

from collections.abc import Sequence


def enumerated(parts: Sequence[str]) -> str:
    """
    >>> enumerated([]), enumerated(["names"]), enumerated(["names", "places", "sums"])
    ('', 'names', 'names, places and sums')
    """
    return "".join(parts) if len(parts) < 2 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def counted(number: int, noun: str) -> str:
    """
    >>> counted(1, "trial"), counted(2, "trial")
    ('1 trial', '2 trials')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def duration(seconds: float) -> str:
    """
    >>> duration(0.4), duration(75), duration(7300)
    ('1s', '75s', '2h')
    """
    if seconds < 120:
        return f"{max(1, round(seconds))}s"
    return f"{round(seconds / 60)}m" if seconds < 7200 else f"{round(seconds / 3600)}h"
