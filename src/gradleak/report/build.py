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
from gradleak.words import (
    ALL_METRIC_MEANINGS,
    CAVEAT,
    figure,
    metric_labels,
    of_images,
    outcome,
    remarks,
    status_note,
    threat_model,
)

FILE = "report.html"

MASKED_WORDS = "Texts are masked: every word is a number, equal words of a trial have equal numbers."
NO_IMAGES = "The images are taken out."


def render(results: Results) -> str:
    """The page as text. Everything that comes from data or a model is escaped."""
    shown = {
        "results": results,
        "labels": metric_labels,
        "meanings": ALL_METRIC_MEANINGS,
        "figure": figure,
        "outcome": outcome(results),
        "note": status_note(results),
        "threat": threat_model(results.scenario),
        "remarks": remarks(results),
        "caveat": CAVEAT,
        # The figures hold numbers and our own words only, so they may pass unescaped.
        "traces": Markup(trace_figure(results.trials)),
    }
    if of_images(results):
        return templates().get_template("images.html").render(**shown, masking=NO_IMAGES)
    scores = Markup(score_figure(results))
    return (
        templates()
        .get_template("report.html")
        .render(**shown, masking=MASKED_WORDS, scores=scores, highlight=highlight)
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
