"""The page of an audit of images: the private ones beside what was read back."""

from __future__ import annotations

from pathlib import Path

from markupsafe import Markup

from gradleak.files import write_text
from gradleak.report.build import FILE, templates
from gradleak.report.figures import trace_figure
from gradleak.results import FILE as RESULTS
from gradleak.results import Results, load_results
from gradleak.words import (
    ALL_METRIC_MEANINGS,
    counted,
    figure,
    metric_labels,
    of_images,
    remarks,
    status_note,
    threat_model,
)

CAVEAT = (
    "These scores say what this attack read back from these updates, with these settings. "
    "A low score is not proof of safety: another attack, more steps or other data may read more."
)


def image_results(folder: Path) -> Results | None:
    """The audit of images that a folder holds, if it holds one."""
    if not (folder / RESULTS).is_file():
        return None
    results = load_results(folder)
    return results if of_images(results) else None


def write_image_report(results: Results, folder: Path) -> Path:
    """Write `report.html`, readable by its owner only."""
    return write_text(folder / FILE, render_images(results))


def render_images(results: Results) -> str:
    """The page as text. Everything that comes from data or a model is escaped."""
    return (
        templates()
        .get_template("images.html")
        .render(
            results=results,
            labels=metric_labels,
            meanings=ALL_METRIC_MEANINGS,
            figure=figure,
            outcome=outcome(results),
            guess=guess(results),
            note=status_note(results),
            threat=threat_model(results.scenario),
            remarks=remarks(results),
            caveat=CAVEAT,
            # The figure holds numbers and our own words only, so it may pass unescaped.
            traces=Markup(trace_figure(results.trials)),
        )
    )


def outcome(results: Results) -> str:
    """The headline: the error against that of the control."""
    score, control = results.summary["mse"], results.control["mse"]
    gap = "well below" if score.high < control.low else "not clearly below"
    return (
        f"{results.attack.name} reached an MSE of {score.mean:.4f} (95 % interval {score.low:.4f} to "
        f"{score.high:.4f}) over {counted(len(results.trials), 'trial')}, {gap} the {control.mean:.4f} of "
        f"{guess(results)}."
    )


def guess(results: Results) -> str:
    """What the control shows: without auxiliary images there is no mean of them."""
    return "the mean auxiliary image" if results.scenario.auxiliary else "a plain grey image"
