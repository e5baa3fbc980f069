"""One self-contained HTML page out of a result."""

from __future__ import annotations

import functools
from pathlib import Path

from jinja2 import Environment as Templates
from jinja2 import PackageLoader, StrictUndefined
from markupsafe import Markup

from gradleak.files import write_text
from gradleak.highlight import highlight
from gradleak.report.figures import score_figure, trace_figure
from gradleak.results import Results
from gradleak.words import CAVEAT, METRIC_MEANINGS, metric_labels, outcome, remarks, status_note, threat_model

FILE = "report.html"


def render(results: Results) -> str:
    """The page as text. Everything that comes from data or a model is escaped."""
    return (
        templates()
        .get_template("report.html")
        .render(
            results=results,
            labels=metric_labels,
            meanings=METRIC_MEANINGS,
            outcome=outcome(results),
            note=status_note(results),
            threat=threat_model(results.scenario),
            remarks=remarks(results),
            caveat=CAVEAT,
            # The figures hold numbers and our own words only, so they may pass unescaped.
            scores=Markup(score_figure(results)),
            traces=Markup(trace_figure(results.trials)),
            highlight=highlight,
        )
    )


def write_report(results: Results, folder: Path) -> Path:
    """Write `report.html`, readable by its owner only."""
    return write_text(folder / FILE, render(results))


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
