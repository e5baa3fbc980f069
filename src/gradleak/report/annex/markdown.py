"""A document as Markdown. Names and texts of others are shown, never obeyed: what would be markup is escaped."""

from __future__ import annotations

import re

from gradleak.core.output import visible
from gradleak.report.annex.document import Block, Document, Items, Section, Table, pieces

_MARKUP = re.compile(r"([\\`*_\[\]|~])")
# At the beginning of a paragraph or an item these make headings, lists, quotes and rules.
_BEGINS = re.compile(r"^(\d*)([#>+=.)-])")


def markdown(document: Document) -> str:
    """The whole text."""
    head = [f"# {_inline(document.title)}", _line(document.kicker), f"**{_inline(document.headline)}**"]
    return "\n\n".join([*head, *(part for section in document.sections for part in _section(section))]) + "\n"


def _section(section: Section) -> list[str]:
    return [f"## {_inline(section.heading)}", *map(_block, section.blocks)]


def _block(block: Block) -> str:
    if isinstance(block, str):
        return _line(block)
    if isinstance(block, Items):
        return "\n".join(f"- {_item(line)}" for line in block.lines)
    return _table(block)


def _table(table: Table) -> str:
    rows = [table.headings, ["---"] * len(table.headings), *([_inline(cell) for cell in row] for row in table.rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


def _item(line: str) -> str:
    r"""
    >>> _item("Try: gradleak audit --data my_file.csv")
    'Try: `gradleak audit --data my_file.csv`'
    """
    parts = [f"`{visible(text)}`" if code else _between(text) for text, code in pieces(line)]
    return _BEGINS.sub(r"\1\\\2", parts[0].lstrip()) + "".join(parts[1:])


def _between(text: str) -> str:
    """A piece of a line, with the space that parts it from its neighbours."""
    before, after = (" " if space else "" for space in (text[:1].isspace(), text[-1:].isspace()))
    return f"{before}{_inline(text)}{after}" if text.strip() else before


def _line(text: str) -> str:
    r"""
    >>> _line("# 5"), _line("5. a"), _line("5 of 6")
    ('\\# 5', '5\\. a', '5 of 6')
    """
    return _BEGINS.sub(r"\1\\\2", _inline(text))


def _inline(text: str) -> str:
    r"""
    >>> _inline("a|b <b>*c*</b>")
    'a\\|b &lt;b&gt;\\*c\\*&lt;/b&gt;'
    """
    line = " ".join(visible(text).split())
    line = line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _MARKUP.sub(r"\\\1", line)
