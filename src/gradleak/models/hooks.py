"""Hooks that see the passes of their own thread alone.

Work that could not be ended in time is left behind (`core/supervision.py`), and while it sits in one long call its
hooks are still on the model that others run by then.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any


def of_this_thread(hook: Callable[..., Any]) -> Callable[..., Any]:
    """The hook, for passes of the thread that calls this now; those of other threads go by it.

    >>> seen = []
    >>> hook = of_this_thread(seen.append)
    >>> other = threading.Thread(target=hook, args=("theirs",))
    >>> other.start(), other.join(), hook("ours"), seen
    (None, None, None, ['ours'])
    """
    mine = threading.get_ident()

    @functools.wraps(hook)
    def watched(*arguments: Any, **named: Any) -> Any:
        return hook(*arguments, **named) if threading.get_ident() == mine else None

    return watched
