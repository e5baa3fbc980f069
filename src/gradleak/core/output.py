"""The one way out to a terminal, a pipe or a file: lines are printed here, tables by the console beside it.

What is printed holds names, notes and texts of others. They are shown, never obeyed: characters that command a
terminal or turn the reading direction are written as escapes, and so is what the terminal cannot show.
"""

from __future__ import annotations

import codecs
import os
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from gradleak.core.errors import GradleakError

# Controls but for tab and end of line, marks of direction, separators of lines, what has no width, half characters.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
# What stands in for signs of our own where they cannot be shown.
_PLAIN = {
    "–": "-", "—": "-", "…": "...", "’": "'", "“": '"', "”": '"', "≥": ">=", "≤": "<=", "★": "*", "✓": "+", "×": "x",
}  # fmt: skip
_ERRORS = "gradleak.plain"


def visible(text: str, encoding: str = "utf-8") -> str:
    r"""A text as it can be printed: nothing in it moves a cursor, changes a colour or hides a word.

    >>> visible("red \x1b[31m, \u202eback"), visible("Søren – twice", "ascii")
    ('red \\x1b[31m, \\u202eback', 'S\\xf8ren - twice')
    """
    return encodable(_UNSEEN.sub(lambda match: _escaped(match[0]), text), encoding)


def encodable(text: str, encoding: str) -> str:
    """The text with escapes for what an encoding lacks."""
    return text if text.isascii() else text.encode(encoding, _ERRORS).decode(encoding)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def _plain(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    missing = error.object[error.start : error.end]
    return "".join(_PLAIN.get(character) or _escaped(character) for character in missing), error.end


codecs.register_error(_ERRORS, _plain)


def say(*lines: object, err: bool = False) -> None:
    """Print lines as they are, one each; none is wrapped, so that what they name can be copied."""
    stream = SafeStream(sys.stderr if err else sys.stdout, err=err)
    for line in lines:
        stream.write(visible(str(line), stream.encoding).replace("\n", "\\n") + "\n")
    stream.flush()


class SafeStream:
    """A stream that no character breaks, and that falls silent once nobody can read it any more.

    A full disk is an error, if it is the output that is lost; of the error output there is nobody to tell.
    """

    def __init__(self, stream: Any, *, err: bool = False) -> None:
        self._stream, self._err = stream, err

    @property
    def encoding(self) -> str:
        try:
            return codecs.lookup(getattr(self._stream, "encoding", None) or "utf-8").name
        except LookupError:
            return "ascii"

    def write(self, text: str) -> int:
        self._try(lambda: self._stream.write(encodable(text, self.encoding)))
        return len(text)

    def flush(self) -> None:
        self._try(self._stream.flush)

    def isatty(self) -> bool:
        with suppress(ValueError, AttributeError):
            return bool(self._stream.isatty())
        return False

    def fileno(self) -> int:
        return int(self._stream.fileno())

    def _try(self, act: Callable[[], object]) -> None:
        try:
            act()
        except BrokenPipeError:  # whoever read it has seen enough
            abandon(self._stream)
        except OSError as error:
            abandon(self._stream)
            if not self._err:
                raise GradleakError(f"cannot write the output: {error.strerror}") from error


def abandon(stream: Any) -> None:
    """Let what could not be written go nowhere, so that the interpreter does not try it again at its end."""
    with suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
        stream.flush()
