"""The frontier as files: one self-contained page, and the figure alone."""

from __future__ import annotations

from pathlib import Path

from markupsafe import Markup

from gradleak.core.files import write_text
from gradleak.experiments.frontier.advice import CAVEAT
from gradleak.experiments.frontier.run import Frontier
from gradleak.experiments.frontier.table import frontier_table
from gradleak.report.build import templates
from gradleak.report.tradeoff import frontier_figure
from gradleak.scoring.scale import scale_by

PAGE, FIGURE = "frontier.html", "frontier.svg"


def render_frontier(result: Frontier) -> str:
    """The page as text. Everything that comes from the configuration is escaped, in the figure too."""
    headings, lines = frontier_table(result)
    return (
        templates()
        .get_template("frontier.html")
        .render(
            result=result,
            scale=scale_by(result.measure),
            headings=headings,
            lines=list(zip(result.points, lines, strict=True)),
            caveat=CAVEAT,
            figure=Markup(frontier_figure(result)),
        )
    )


def write_frontier(result: Frontier, folder: Path) -> Path:
    """Write page, figure and numbers; the page's place."""
    result.save(folder)
    write_text(folder / FIGURE, frontier_figure(result))
    return write_text(folder / PAGE, render_frontier(result))
