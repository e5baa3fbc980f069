"""The audits of a training as files: one self-contained page, and the figure alone."""

from __future__ import annotations

from pathlib import Path

from markupsafe import Markup

from gradleak.core.files import write_text
from gradleak.experiments.checkpoints.result import CAVEAT, Checkpoints, headline
from gradleak.experiments.checkpoints.table import checkpoint_table
from gradleak.report.build import templates
from gradleak.report.timeline import timeline_figure
from gradleak.scoring.scale import scale_by

PAGE, FIGURE = "checkpoints.html", "checkpoints.svg"


def render_checkpoints(result: Checkpoints) -> str:
    """The page as text. Everything that comes from the configuration is escaped; the figure holds our own words."""
    headings, lines = checkpoint_table(result)
    return (
        templates()
        .get_template("checkpoints.html")
        .render(
            result=result,
            scale=scale_by(result.metric),
            headline=headline(result),
            headings=headings,
            lines=lines,
            caveat=CAVEAT,
            figure=Markup(timeline_figure(result)),
        )
    )


def write_checkpoints(result: Checkpoints, folder: Path) -> Path:
    """Write page, figure and numbers; the page's place."""
    result.save(folder)
    write_text(folder / FIGURE, timeline_figure(result))
    return write_text(folder / PAGE, render_checkpoints(result))
