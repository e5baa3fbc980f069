"""A document as values, which Markdown and HTML are both made of, so that neither says what the other does not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


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
