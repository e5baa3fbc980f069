"""Several audits of the same images as one picture: a column an image, a line for every defence and attack."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from markupsafe import Markup

from gradleak.audits.results import Results
from gradleak.core.errors import GradleakError
from gradleak.core.files import write_text
from gradleak.report.build import templates
from gradleak.report.images import control_guess, own_image
from gradleak.scoring.metrics import figure, format_score, labels_of
from gradleak.verdict.gather import gather

PAGE, DRAWING = "grid.html", "grid.svg"
SIDE, GAP, LEFT, TOP, HEADING = 64, 6, 150, 10, 26

# Colours of the page where there is one, and of its light theme where the figure stands alone.
STYLE = """
.pictures text { font: 13px system-ui, sans-serif; fill: var(--ink, #1d2430); }
.pictures .ground { fill: var(--card, #fff); } .pictures .head { font-weight: 650; }
.pictures .soft { fill: var(--soft, #5d6777); } .pictures image { image-rendering: pixelated; }
"""


def write_grid(folders: Sequence[Path], out: Path, images: int = 6) -> tuple[Path, Path]:
    """Write the page, and the figure alone as an SVG file, out of folders that hold audits of images, one or many."""
    audits = [results for folder in folders for results in gather(folder).results]
    check_same_images(audits)
    drawn = grid_figure(audits, images)
    page = (
        templates()
        .get_template("grid.html")
        .render(
            title=f"images read back from {audits[0].scenario.model}",
            figure=Markup(drawn),
            headings=["Defence", "Attack", *labels_of(audits[0].summary).values(), "Trials"],
            lines=[_line(results) for results in ordered(audits)],
            control=_controls(audits[0]),
            guess=control_guess(audits[0]),
        )
    )
    return write_text(out / PAGE, page), write_text(out / DRAWING, drawn + "\n")


def check_same_images(audits: Sequence[Results]) -> None:
    """Refuse audits that cannot stand beside one another."""
    if not audits:
        raise GradleakError("a grid needs at least one folder of an audit of images")
    for results in audits:
        if results.scenario.modality != "images":
            raise GradleakError(f"{results.attack.name} on {results.scenario.model} is no audit of images")
        if results.redacted:
            raise GradleakError("images were taken out of one of the results, so they cannot be shown")
    first = _truths(audits[0])
    if any(_truths(results)[: len(first)] != first[: len(_truths(results))] for results in audits):
        raise GradleakError("the audits are not of the same images; use the same data, batch size and seed")


def ordered(audits: Sequence[Results]) -> list[Results]:
    """Defence by defence, in the order in which each first came."""
    defences = list(dict.fromkeys(_defence(results) for results in audits))
    return sorted(audits, key=lambda results: defences.index(_defence(results)))


def grid_figure(audits: Sequence[Results], images: int) -> str:
    """The figure as SVG, with the images inside it."""
    truths = _truths(audits[0])[:images]
    y, last, parts = TOP, None, [*_row("truth", None, truths, TOP)]
    y += SIDE + GAP
    for results in ordered(audits):
        if _defence(results) != last:
            last = _defence(results)
            parts.append(f'<text class="head" x="{GAP}" y="{y + HEADING - 8}">{escape(last)}</text>')
            y += HEADING
        error = f"MSE {figure('mse', results.summary['mse'].mean)}"
        parts += _row(results.attack.name, error, _recovered(results)[: len(truths)], y)
        y += SIDE + GAP
    width, height = LEFT + len(truths) * (SIDE + GAP) + GAP, y + TOP
    return "".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="pictures" viewBox="0 0 {width} {height}" role="img" '
            f'aria-label="Private images, and what each attack read back under each defence"><style>{STYLE}</style>'
            f'<rect class="ground" width="{width}" height="{height}"/>',
            *parts,
            "</svg>",
        ]
    )


def _row(name: str, below: str | None, uris: Sequence[str], y: int) -> list[str]:
    parts = [f'<text x="{GAP}" y="{y + SIDE / 2:.0f}">{escape(name)}</text>']
    if below is not None:
        parts.append(f'<text class="soft" x="{GAP}" y="{y + SIDE / 2 + 17:.0f}">{escape(below)}</text>')
    for number, uri in enumerate(uris):
        if own_image(uri):
            x = LEFT + number * (SIDE + GAP)
            parts.append(f'<image x="{x}" y="{y}" width="{SIDE}" height="{SIDE}" href="{escape(uri)}"/>')
    return parts


def _line(results: Results) -> list[str]:
    scores = [format_score(name, results.summary[name]) for name in labels_of(results.summary)]
    return [_defence(results), results.attack.name, *scores, str(len(results.trials))]


def _controls(results: Results) -> str:
    return ", ".join(
        f"{label} {figure(n, results.control[n].mean)}" for n, label in labels_of(results.control).items()
    )


def _defence(results: Results) -> str:
    return " + ".join(results.scenario.defenses) or "no defence"


def _truths(results: Results) -> list[str]:
    return [pair.truth for trial in results.trials for pair in trial.pairs]


def _recovered(results: Results) -> list[str]:
    return [pair.reconstruction for trial in results.trials for pair in trial.pairs]
