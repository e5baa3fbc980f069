"""Tables that benches put into pages of the docs."""

from __future__ import annotations

from pathlib import Path

from gradleak.core.errors import GradleakError
from gradleak.core.files import write_text

END = "<!-- its end -->"


def place_of(bench: str) -> str:
    """The mark in a page after which the table of a bench stands, up to its end.

    >>> place_of("gradleak.bench.size")
    '<!-- the table of gradleak.bench.size -->'
    """
    return f"<!-- the table of {bench} -->"


def fill_page(page: Path, bench: str, table: str) -> None:
    """Put the table of a bench where a page has a place for it."""
    text = page.read_text(encoding="utf-8")
    before, start, rest = text.partition(place_of(bench))
    _, end, after = rest.partition(END)
    if not start or not end:
        raise GradleakError(f"{page} has no place for the table: {place_of(bench)}")
    write_text(page, f"{before}{start}\n\n{table}\n\n{end}{after}")
