"""Whole sentences against the batch size and against noise, as a figure and as a page of the book."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from gradleak.scoring.interval import Interval, mean_interval

FIGURE = "images/whole-sentences.svg"
WIDTH, HEIGHT, LEFT, RIGHT, BOTTOM, TOP = 430, 320, 44, 16, 46, 72
APART = 44  # labels of an axis
COLOURS = ("#b3261e", "#1a6b9c")
NOISE_MINILM, NOISE_SMOLLM2 = r"noise_minilm_cola_[\d.]+", r"noise_smollm2_film_b1_[\de.-]+"


@dataclass(frozen=True)
class Curve:
    """A line of a panel: the files of an attack's batches (a pattern), and those of the guesses beside it."""

    name: str
    attacked: str
    guessed: str


@dataclass(frozen=True)
class Panel:
    """Curves over one quantity."""

    title: str
    over: str
    key: str
    curves: tuple[Curve, ...]


PANELS = (
    Panel(
        "No defence, batches of several sizes",
        "sentences in the batch",
        "batch_size",
        (
            Curve("MiniLM, CoLA", r"encoders_cola_b\d+", "guessing_minilm_cola"),
            Curve("SmolLM2, Enron", r"crowded_b\d+", "guessing_smollm2_enron"),
        ),
    ),
    Panel(
        "One sentence, noise on every entry",
        "σ of the noise",
        "sigma",
        (
            Curve("MiniLM, CoLA", NOISE_MINILM, NOISE_MINILM),
            Curve("SmolLM2, Rotten Tomatoes", NOISE_SMOLLM2, NOISE_SMOLLM2),
        ),
    ),
)


@dataclass(frozen=True)
class Point:
    """Shares of whole sentences in percent at one batch size or one noise, over so many batches."""

    x: float
    whole: Interval
    batches: int


def points(cells: Iterable[tuple[float, float]]) -> list[Point]:
    """A point for each value of what a curve runs over.

    >>> [(point.x, point.whole.mean, point.batches) for point in points([(4, 1.0), (1, 1.0), (4, 0.5)])]
    [(1, 100.0, 1), (4, 75.0, 2)]
    """
    groups: dict[float, list[float]] = {}
    for x, share in cells:
        groups.setdefault(x, []).append(100 * share)
    return [Point(x, mean_interval(shares), len(shares)) for x, shares in sorted(groups.items())]


def matching(files: Mapping[str, Any], pattern: str) -> dict[str, Any]:
    """Files of measurements by a regular expression of their names; none is an error."""
    found = {name: content for name, content in files.items() if re.fullmatch(pattern, PurePosixPath(name).stem)}
    if not found:
        raise ValueError(f"no file of measurements is called {pattern}")
    return found


def attacked(files: Mapping[str, Any], panel: Panel, curve: Curve) -> list[Point]:
    """What the attack gave whole."""
    return points(
        (_at(content, cell, panel.key), cell["whole"] / cell["sentences"])
        for content in matching(files, curve.attacked).values()
        for cell in content["cells"]
    )


def guessed(files: Mapping[str, Any], panel: Panel, curve: Curve) -> list[Point]:
    """What guesses gave whole; the overlap of a single sentence that is whole is 100."""
    return points(
        (_at(content, cell, panel.key), _guessed_share(cell))
        for content in matching(files, curve.guessed).values()
        for cell in content["cells"]
    )


def _at(content: Mapping[str, Any], cell: Mapping[str, Any], key: str) -> float:
    return float(cell[key] if key in cell else content["settings"][key])


def _guessed_share(cell: Mapping[str, Any]) -> float:
    if "control" in cell:
        return sum(value >= 100.0 for value in cell["control"]) / cell["sentences"]
    return float(cell["whole"] / cell["sentences"])


def rows(files: Mapping[str, Any]) -> list[list[str]]:
    """The figure as a table."""
    lines = []
    for panel in PANELS:
        for curve in panel.curves:
            guesses = {point.x: point for point in guessed(files, panel, curve)}
            for point in attacked(files, panel, curve):
                guess = guesses.get(point.x)
                batches = f"{point.batches} {'batch' if point.batches == 1 else 'batches'}"
                whole = f"{point.whole.mean:.0f} (one)" if point.batches == 1 else str(point.whole)
                told = "" if guess is None else f"{guess.whole} of {guess.batches}"
                lines.append([curve.name, f"{panel.over}: {point.x:g}", whole, batches, told])
    return lines


def sources(files: Mapping[str, Any]) -> list[str]:
    """Every file that a curve is made of."""
    patterns = [pattern for panel in PANELS for curve in panel.curves for pattern in (curve.attacked, curve.guessed)]
    return list(dict.fromkeys(name for pattern in patterns for name in matching(files, pattern)))


def figure(files: Mapping[str, Any]) -> str:
    """Two panels with a line each model, intervals as bars; what guessing gives is dashed."""
    drawn = "".join(_panel(files, panel, number * WIDTH) for number, panel in enumerate(PANELS))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {len(PANELS) * WIDTH} {HEIGHT}" '
        f'font-family="sans-serif" font-size="12" role="img"><title>Whole sentences, in percent</title>'
        f'<rect width="{len(PANELS) * WIDTH}" height="{HEIGHT}" fill="#fff"/>{drawn}</svg>\n'
    )


def _panel(files: Mapping[str, Any], panel: Panel, left: int) -> str:
    lines = [(attacked(files, panel, curve), guessed(files, panel, curve)) for curve in panel.curves]
    xs = sorted({point.x for own, _ in lines for point in own})
    low, high = math.log(xs[0]), math.log(xs[-1])

    def at(x: float, share: float) -> tuple[float, float]:
        across = (math.log(x) - low) / (high - low) if high > low else 0.5
        up = (HEIGHT - BOTTOM - TOP) * share / 100
        return left + LEFT + 12 + (WIDTH - LEFT - RIGHT - 24) * across, HEIGHT - BOTTOM - up

    parts = [f'<text x="{left + LEFT}" y="18" fill="#333">{panel.title}: whole sentences, %</text>']
    for share in (0, 25, 50, 75, 100):
        _, y = at(xs[0], share)
        parts.append(
            f'<text x="{left + LEFT - 8}" y="{y + 4:.0f}" text-anchor="end" fill="#666">{share}</text>'
            f'<line x1="{left + LEFT}" y1="{y:.0f}" x2="{left + WIDTH - RIGHT}" y2="{y:.0f}" stroke="#eee"/>'
        )
    right = -math.inf
    for x in xs:
        px, _ = at(x, 0)
        if px - right >= APART:  # labels that would lie on the one before are left out; the table has all
            right = px
            parts.append(
                f'<text x="{px:.0f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle" fill="#666">{x:g}</text>'
            )
    parts.append(f'<text x="{left + LEFT}" y="{HEIGHT - 8}" fill="#666">{panel.over}</text>')
    for number, (curve, (own, guesses)) in enumerate(zip(panel.curves, lines, strict=True)):
        colour, y = COLOURS[number], 36 + 16 * number
        parts.append(
            f'<circle cx="{left + LEFT + 4}" cy="{y - 4}" r="4" fill="{colour}"/>'
            f'<text x="{left + LEFT + 14}" y="{y}" fill="#333">{curve.name}; dashed: guessing</text>'
        )
        parts += [
            _line([at(p.x, p.whole.mean) for p in guesses if low <= math.log(p.x) <= high], colour, dashed=True)
        ]
        parts += [_bar(at(point.x, point.whole.low), at(point.x, point.whole.high), colour) for point in own]
        parts += [_line([at(point.x, point.whole.mean) for point in own], colour)]
    return "".join(parts)


def _line(places: Sequence[tuple[float, float]], colour: str, dashed: bool = False) -> str:
    drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    dots = "" if dashed else "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>' for x, y in places)
    dash = ' stroke-dasharray="5 4"' if dashed else ""
    return f'<polyline points="{drawn}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>{dots}'


def _bar(low: tuple[float, float], high: tuple[float, float], colour: str) -> str:
    return (
        f'<line x1="{low[0]:.1f}" y1="{low[1]:.1f}" x2="{high[0]:.1f}" y2="{high[1]:.1f}" stroke="{colour}" '
        'stroke-opacity="0.35" stroke-width="3"/>'
    )
