"""A map as files: one self-contained page, and the figure alone."""

from __future__ import annotations

from pathlib import Path

from markupsafe import Markup

from gradleak.core.files import write_text
from gradleak.experiments.map.result import CAVEAT, LeakMap, headline
from gradleak.experiments.map.table import baselines, claim_lines, map_table
from gradleak.report.build import templates
from gradleak.report.heatmap import map_figure
from gradleak.scoring.scale import scale_by

PAGE, FIGURE = "map.html", "map.svg"


def render_map(result: LeakMap) -> str:
    """The page as text. Everything that comes from the configuration is escaped, in the figure too."""
    headings, lines = map_table(result)
    return (
        templates()
        .get_template("map.html")
        .render(
            result=result,
            scale=scale_by(result.metric),
            headline=headline(result),
            headings=headings,
            lines=lines,
            baselines=baselines(result),
            claims=claim_lines(result),
            caveat=CAVEAT,
            figure=Markup(map_figure(result)),
        )
    )


def write_map(result: LeakMap, folder: Path) -> Path:
    """Write page, figure and numbers; the page's place."""
    result.save(folder)
    write_text(folder / FIGURE, map_figure(result))
    return write_text(folder / PAGE, render_map(result))
