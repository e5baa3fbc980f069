"""What was read back of texts: rows that the page's script draws, and a table for the terminal."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from importlib import resources
from typing import Any

from markupsafe import Markup, escape
from rich.table import Table
from rich.text import Text

from gradleak.audits.results import Results
from gradleak.audits.rows import score_columns
from gradleak.core.output import visible
from gradleak.report.highlight import highlight
from gradleak.report.rows import marks, named_rows
from gradleak.report.wording import certified_mark
from gradleak.scoring.metrics import label_of, labels_of

NAMES = {
    "scenario": "Scenario",
    "defense": "Defence",
    "attack": "Attack",
    "trial": "Trial",
    "truth": "Truth, and what was read back",
    "confidence": "Confidence",
}
# Shown for every sentence; the others where one sentence is looked at.
SHOWN_SCORES = ("rougeL",)
STYLES = {"pair": "bold green", "word": "yellow", "none": "dim"}


def sentence_values(results: Sequence[Results], varying: Sequence[str]) -> dict[str, Any]:
    """What the page of texts shows beside what all pages do; `varying` are the names that tell the audits apart."""
    script = resources.files("gradleak.report").joinpath("templates", "report.js").read_text(encoding="utf-8")
    return {
        "row_columns": [
            *((name, NAMES[name]) for name in ("truth", *varying, "trial")),
            *((name, label_of(name)) for name in SHOWN_SCORES),
            ("confidence", NAMES["confidence"]),
        ],
        "numeric": {"trial", "confidence", *SHOWN_SCORES},
        "data": embedded(_data(results)),
        "script": Markup(script),
        "script_hash": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    }


def _data(results: Sequence[Results]) -> dict[str, Any]:
    """What the script draws rows from: lists instead of tables, since names would make up half of the page."""
    rows, scores = named_rows(results), score_columns(results)
    return {
        "columns": list(rows[0]) if rows else [],
        "scores": scores,
        "labels": NAMES | labels_of(scores),
        "rows": [list(row.values()) for row in rows],
        "marks": [marks(row["truth"], row["recovered"]) for row in rows],
    }


def embedded(data: Any) -> Markup:
    """Data as JSON that can stand inside a script element: no tag can begin or end in it.

    >>> embedded(["</script>"])
    Markup('["\\\\u003c/script\\\\u003e"]')
    """
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))


def sentence_html(truth: str, recovered: str | None) -> Markup:
    """A recovery with its right words marked; of None the truth.

    >>> sentence_html("the cat sat", "a cat")
    Markup('<span class="miss">a </span><mark class="word-mark">cat</mark>')
    """
    if recovered is None:
        return escape(truth)
    kinds = {"p": '<mark class="pair-mark">{}</mark>', "w": '<mark class="word-mark">{}</mark>'}
    pieces = marks(truth, recovered) or [("nothing", "")]
    return Markup().join(
        Markup(kinds.get(mark, '<span class="miss">{}</span>')).format(piece) for piece, mark in pieces
    )


def sentence_table(results: Results, limit: int | None = None) -> Table:
    """True sentences beside what was read back: green for right neighbours, yellow for right words."""
    table = Table(title="What was read back", title_justify="left", show_lines=True)
    table.add_column("trial", justify="right")
    table.add_column("truth", ratio=1)
    table.add_column("recovered", ratio=1)
    table.add_column("R-1", justify="right")
    table.add_column("R-2", justify="right")
    table.add_column("R-L", justify="right")
    rows = [(trial, pair) for trial in results.trials for pair in trial.pairs]
    for trial, pair in rows[:limit]:
        marked = Text()
        for piece, mark in highlight(pair.truth, pair.reconstruction):
            marked.append(visible(piece), style=STYLES[mark])
        rouge = [pair.scores.get(name) for name in ("rouge1", "rouge2", "rougeL")]
        numbers = ["–" if score is None else f"{score:.0f}" for score in rouge]
        if pair.certified:
            marked.append(f" ✓ {certified_mark(pair.lost)}", style="bold cyan")
        table.add_row(" ".join(filter(None, (str(trial.index + 1), pair.side))), pair.truth, marked, *numbers)
    if limit is not None and len(rows) > limit:
        table.caption = f"{len(rows) - limit} more in the report"
    return table
