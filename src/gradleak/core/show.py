"""Results in a notebook: small HTML tables, and data frames where pandas is installed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from gradleak.core.errors import GradleakError

if TYPE_CHECKING:
    import pandas


def html_table(caption: str, headings: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A plain table; every text is escaped.

    >>> html_table("<b>", ["metric"], [["ROUGE-L"]])
    '<table><caption>&lt;b&gt;</caption><tr><th>metric</th></tr><tr><td>ROUGE-L</td></tr></table>'
    """
    rows = [_row("th", headings), *(_row("td", line) for line in lines)]
    return f"<table><caption>{escape(caption)}</caption>{''.join(rows)}</table>"


def _row(tag: str, cells: Sequence[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"


def data_frame(rows: Sequence[Mapping[str, Any]]) -> pandas.DataFrame:
    """Lines with the same keys as a data frame."""
    try:
        import pandas
    except ImportError as error:
        raise GradleakError("data frames need the pandas library: pip install pandas") from error
    return pandas.DataFrame(list(rows))
