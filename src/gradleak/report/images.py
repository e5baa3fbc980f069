"""The page of an audit of images: the private ones beside what was read back."""

from __future__ import annotations

from pathlib import Path

from markupsafe import Markup

from gradleak.audits.results import FILE as RESULTS
from gradleak.audits.results import Results, load_results
from gradleak.core.files import write_text
from gradleak.report.build import FILE, templates
from gradleak.report.figures import trace_figure
from gradleak.report.wording import of_images, remarks, status_note, threat_model
from gradleak.scoring.metrics import counts_of, figure, labels_of
from gradleak.verdict.model import Verdict
from gradleak.verdict.sentences import leaked_words, strongest_of


def image_results(folder: Path) -> Results | None:
    """The audit of images that a folder holds, if it holds one."""
    if not (folder / RESULTS).is_file():
        return None
    results = load_results(folder)
    return results if of_images(results) else None


def write_image_report(results: Results, verdict: Verdict, folder: Path) -> Path:
    """Write `report.html`, readable by its owner only."""
    return write_text(folder / FILE, render_images(results, verdict))


def render_images(results: Results, verdict: Verdict) -> str:
    """The page as text. Everything that comes from data or a model is escaped."""
    (judged,) = verdict.scenarios
    return (
        templates()
        .get_template("images.html")
        .render(
            results=results,
            labels=labels_of,
            counts=counts_of,
            figure=figure,
            headline=judged.headline,
            leaked=leaked_words(strongest_of(judged)),
            guess=guess(results),
            note=status_note(results),
            threat=threat_model(results.scenario),
            remarks=remarks(results),
            caveat=verdict.caveat,
            # The figure holds numbers and our own words only, so it may pass unescaped.
            traces=Markup(trace_figure(results.trials)),
        )
    )


def guess(results: Results) -> str:
    """What the control shows: without auxiliary images there is no mean of them."""
    return "the mean auxiliary image" if results.scenario.auxiliary else "a plain grey image"
