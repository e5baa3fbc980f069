"""Private text on its way out: while redaction is on, messages have a mask where they would quote it.

Whatever leaves the work is made of words of our own and of what `private` lets through, so that nothing has to be
searched for private words afterwards. Redaction holds for the whole process, because attacks run in threads.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gradleak.core.errors import GradleakError

MASK = "(masked)"

_lock = threading.Lock()
_asked = 0


class MaskedError(Exception):
    """An error nobody foresaw, without its own words, which may be private."""


@contextmanager
def redacting(on: bool = True) -> Iterator[None]:
    """Mask what is private, if `on`, until the work inside is over. An unforeseen error leaves without its words.

    >>> with redacting():
    ...     private("Her biopsy came back clear.")
    '(masked)'
    """
    global _asked
    with _lock:
        _asked += on
    try:
        yield
    except (GradleakError, OSError, MemoryError):
        raise
    except Exception as problem:
        if not is_redacting():
            raise
        raise MaskedError(described(problem)).with_traceback(problem.__traceback__) from None
    finally:
        with _lock:
            _asked -= on


def is_redacting() -> bool:
    return _asked > 0


def private(text: str) -> str:
    """A piece of a message that may hold words of a private text, a label or a recovery.

    >>> private("'Her biopsy'")
    "'Her biopsy'"
    """
    return MASK if is_redacting() else text


def described(problem: BaseException) -> str:
    """An unforeseen error in one line: what it is, and where in the code it happened."""
    if isinstance(problem, MaskedError):
        return str(problem)
    frames = traceback.extract_tb(problem.__traceback__)
    place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return f"{type(problem).__name__}: {private(' '.join(str(problem).split())[:500])}{place}"
