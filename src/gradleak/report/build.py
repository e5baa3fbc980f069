"""One self-contained HTML page out of one result or of a whole folder of them."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment as Templates
from jinja2 import PackageLoader, StrictUndefined
from markupsafe import Markup

from gradleak.audits.rows import score_columns
from gradleak.core.files import write_text
from gradleak.report.contents import COLUMN_NAMES, contents
from gradleak.report.rows import marks as marks_of
from gradleak.report.rows import named_rows
from gradleak.scoring.metrics import labels_of
from gradleak.verdict.gather import Gathered

FILE = "report.html"


def render(found: Gathered) -> str:
    """The page as text. Everything that comes from data or a model is escaped; the script's hash is in the policy."""
    script = resources.files("gradleak.report").joinpath("templates", "report.js").read_text(encoding="utf-8")
    return (
        templates()
        .get_template("report.html")
        .render(
            **contents(found),
            data=embedded(_data(found)),
            script=Markup(script),
            script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        )
    )


def write_report(found: Gathered) -> Path:
    """Write `report.html` into the folder, readable by its owner only."""
    return write_text(found.folder / FILE, render(found))


def embedded(data: Any) -> Markup:
    """Data as JSON that can stand inside a script element: no tag can begin or end in it.

    >>> embedded(["</script>"])
    Markup('["\\\\u003c/script\\\\u003e"]')
    """
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))


def _data(found: Gathered) -> dict[str, Any]:
    """What the script draws rows from: lists instead of tables, since names would make up half of the page."""
    rows, scores = named_rows(found.results), score_columns(found.results)
    return {
        "columns": list(rows[0]) if rows else [],
        "scores": scores,
        "labels": COLUMN_NAMES | labels_of(scores),
        "rows": [list(row.values()) for row in rows],
        "marks": [marks_of(row["truth"], row["recovered"]) for row in rows],
    }


@functools.cache
def templates() -> Templates:
    """The page templates, strict about names and escaping all values."""
    return Templates(
        loader=PackageLoader("gradleak.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
