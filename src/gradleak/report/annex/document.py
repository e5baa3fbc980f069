"""A document as values, which Markdown and HTML are both made of, so that neither says what the other does not."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

# A command to copy: between backticks, or all that follows a colon.
_WORDS = r"gradleak [^`<\x00-\x1f\x7f-\x9f\u2028\u2029]+"
_COMMAND = re.compile(rf"`({_WORDS})`|(?<=: )({_WORDS})$")


@dataclass(frozen=True)
class Table:
    """Headings, and rows of as many cells."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Items:
    """A list."""

    lines: Sequence[str]


# A text is a paragraph.
Block = str | Table | Items


@dataclass(frozen=True)
class Section:
    """A heading with what stands below it."""

    heading: str
    blocks: list[Block] = field(default_factory=list)


@dataclass(frozen=True)
class Document:
    """All of it."""

    title: str
    kicker: str
    headline: str
    sections: list[Section]


def pieces(line: str) -> Iterator[tuple[str, bool]]:
    """A line in pieces, each with whether it is a command, which has to stay as it is to be copied.

    >>> list(pieces("Not tried: it; `gradleak contains` tries it."))
    [('Not tried: it; ', False), ('gradleak contains', True), (' tries it.', False)]
    """
    end = 0
    for found in _COMMAND.finditer(line):
        yield line[end : found.start()], False
        yield found[1] or found[2], True
        end = found.end()
    yield line[end:], False
