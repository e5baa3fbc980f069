"""Leak against utility as one SVG figure, which stands alone or follows the theme of the page it is in."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from gradleak.experiments.frontier.points import Point
from gradleak.experiments.frontier.run import Frontier
from gradleak.report.axis import Axis, ticks
from gradleak.report.labels import Box, place_labels
from gradleak.scoring.metrics import label_of

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 860, 520, 64, 24, 20, 62
# A label this near to its point needs no line to it.
NEAR = 12.0
CONTROL, UNTRAINED = "control: guessing without the update", "without training"

AXES = {
    "accuracy": "accuracy on held-out rows, %",
    "f1": "F1 on held-out rows, %",
    "mcc": "Matthews correlation on held-out rows, × 100",
    "perplexity": "perplexity on held-out rows (better to the right)",
}

# Colours of the page where there is one, and of its light theme where the figure stands alone.
STYLE = """
.frontier text { font: 13px system-ui, sans-serif; fill: var(--ink, #1d2430); }
.frontier .ground { fill: var(--card, #fff); } .frontier .grid { stroke: var(--line, #dcdfe5); }
.frontier .tick { fill: var(--soft, #5d6777); }
.frontier .bar, .frontier .leader { stroke: var(--control, #7b8494); stroke-width: 1; }
.frontier .leader { opacity: .6; } .frontier .point { fill: var(--control, #7b8494); }
.frontier .best .point { fill: var(--attack, #b3261e); } .frontier .best .bar { stroke: var(--attack, #b3261e); }
.frontier .open .point { fill: var(--card, #fff); stroke: var(--control, #7b8494); stroke-width: 2; }
.frontier .front { fill: none; stroke: var(--attack, #b3261e); stroke-width: 1.5; stroke-dasharray: 6 4; }
.frontier .floor { stroke: var(--pair, #1a7f37); stroke-width: 1.5; }
.frontier .start { stroke: var(--soft, #5d6777); stroke-dasharray: 2 4; }
.frontier .band { fill: var(--pair, #1a7f37); opacity: .12; } .frontier .guess { fill: var(--pair, #1a7f37); }
.frontier .label { paint-order: stroke; stroke: var(--card, #fff); stroke-width: 4px; stroke-linejoin: round; }
.frontier .best .label { font-weight: 650; }
"""


@dataclass(frozen=True)
class _Spot:
    point: Point
    x: float
    y: float


def frontier_figure(result: Frontier) -> str:
    """One point a setting with both intervals, the control as a floor, the Pareto front as a line."""
    points = [p for p in result.points if p.score is not None and p.utility is not None]
    across, down = _across(points, result), Axis(0, 100, HEIGHT - BOTTOM, TOP)
    spots = [_Spot(p, across.at(p.utility.mean), down.at(p.score.leak.mean)) for p in points if p.utility and p.score]
    label = label_of(result.measure)
    description = f"Best attack's {label} against what the model learns, one point a defence setting, 95 % intervals"
    return "".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="frontier" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
            f'aria-label="{escape(description)}"><desc>{escape(description)}</desc><style>{STYLE}</style>'
            f'<rect class="ground" width="{WIDTH}" height="{HEIGHT}"/>',
            *_axes(across, down, result),
            *_floor(result, down),
            *_start(result, across),
            *_front(spots),
            *_bars(spots, across, down),
            *_named(spots, _words(result, across, down), label),
            "</svg>\n",
        ]
    )


def _across(points: Sequence[Point], result: Frontier) -> Axis:
    """The utility axis, better always to the right, as wide as the means ask and the intervals allow."""
    means = [p.utility.mean for p in points if p.utility] or [0.0, 100.0]
    if result.untrained is not None:
        means.append(result.untrained.mean)
    low, high = min(means), max(means)
    margin = max(0.15 * (high - low), 0.02 * abs(high), 1e-6)
    if result.metric == "perplexity":
        return Axis(high + margin, max(low - margin, 0.0), LEFT, WIDTH - RIGHT)
    return Axis(max(low - margin, -100.0), min(high + margin, 100.0), LEFT, WIDTH - RIGHT)


def _axes(across: Axis, down: Axis, result: Frontier) -> list[str]:
    bottom = HEIGHT - BOTTOM
    parts = []
    for value in range(0, 101, 20):
        y = down.at(value)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value}</text>')
    for number in ticks(across.first, across.last):
        x = across.at(number)
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{bottom}"/>')
        parts.append(f'<text class="tick" x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{number:g}</text>')
    middle = (TOP + bottom) / 2
    parts.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2:.0f}" y="{bottom + 42}" text-anchor="middle">')
    parts.append(f"{AXES[result.metric]}</text>")
    parts.append(f'<text transform="translate(18 {middle:.0f}) rotate(-90)" text-anchor="middle">')
    parts.append(f"read back by the best attack, {escape(label_of(result.measure))}</text>")
    return parts


def _floor(result: Frontier, down: Axis) -> list[str]:
    """The control: what guessing reads, with its interval as a band."""
    if result.control is None:
        return []
    top, line, bottom = (down.at(v) for v in (result.control.high, result.control.mean, result.control.low))
    span = WIDTH - RIGHT - LEFT
    return [
        f'<rect class="band" x="{LEFT}" y="{top:.1f}" width="{span}" height="{max(bottom - top, 0):.1f}"/>',
        f'<line class="floor" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{line:.1f}" y2="{line:.1f}"/>',
        f'<text class="guess" x="{LEFT + 6}" y="{line - 6:.1f}">{CONTROL}</text>',
    ]


def _start(result: Frontier, across: Axis) -> list[str]:
    """Where the model stands before any training."""
    if result.untrained is None:
        return []
    x = across.at(result.untrained.mean)
    return [
        f'<line class="start" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>',
        f'<text class="tick" x="{x + 6:.1f}" y="{TOP + 14}">{UNTRAINED}</text>',
    ]


def _words(result: Frontier, across: Axis, down: Axis) -> list[Box]:
    """What labels must keep off beside points: the words on the two floors."""
    boxes = []
    if result.control is not None:
        boxes.append(Box.of_text(LEFT + 6, down.at(result.control.mean) - 6, CONTROL))
    if result.untrained is not None:
        boxes.append(Box.of_text(across.at(result.untrained.mean) + 6, TOP + 14, UNTRAINED))
    return boxes


def _front(spots: Sequence[_Spot]) -> list[str]:
    chosen = sorted((spot.x, spot.y) for spot in spots if spot.point.on_front)
    if len(chosen) < 2:
        return []
    return [f'<polyline class="front" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in chosen)}"/>']


def _bars(spots: Sequence[_Spot], across: Axis, down: Axis) -> list[str]:
    """Both intervals of every point, cut off at the edges of the plot."""
    parts = []
    for spot in spots:
        leak, utility = spot.point.score, spot.point.utility
        assert leak is not None
        assert utility is not None
        (x0, x1), (y0, y1) = ((s.inside(i.low), s.inside(i.high)) for s, i in ((across, utility), (down, leak.leak)))
        parts.append(
            f'<g class="{_kind(spot.point)}">'
            f'<line class="bar" x1="{x0:.1f}" x2="{x1:.1f}" y1="{spot.y:.1f}" y2="{spot.y:.1f}"/>'
            f'<line class="bar" x1="{spot.x:.1f}" x2="{spot.x:.1f}" y1="{y0:.1f}" y2="{y1:.1f}"/></g>'
        )
    return parts


def _named(spots: Sequence[_Spot], taken: Sequence[Box], label: str) -> list[str]:
    """Points with their labels, no two labels on one another."""
    area = Box(LEFT, TOP, WIDTH - RIGHT, HEIGHT - BOTTOM)
    texts = [_text(spot.point) for spot in spots]
    parts = []
    for spot, text, box in zip(
        spots, texts, place_labels([(s.x, s.y) for s in spots], texts, area, taken), strict=True
    ):
        x, y = box.nearest(spot.x, spot.y)
        leader = f'<line class="leader" x1="{spot.x:.1f}" y1="{spot.y:.1f}" x2="{x:.1f}" y2="{y:.1f}"/>'
        if math.dist((x, y), (spot.x, spot.y)) < NEAR:
            leader = ""
        parts.append(
            f'<g class="{_kind(spot.point)}"><title>{escape(_title(spot.point, label))}</title>{leader}'
            f'<circle class="point" cx="{spot.x:.1f}" cy="{spot.y:.1f}" r="5"/>'
            f'<text class="label" x="{box.left:.1f}" y="{box.bottom - 4:.1f}">{escape(text)}</text></g>'
        )
    return parts


def _kind(point: Point) -> str:
    return "open" if point.status == "unfinished" else "best" if point.on_front else "other"


def _text(point: Point) -> str:
    named = "no defence" if not point.defenses else point.label
    return f"{named} (unfinished)" if point.status == "unfinished" else named


def _title(point: Point, label: str) -> str:
    assert point.score is not None
    assert point.utility is not None
    leak, utility = point.score.leak, point.utility
    return (
        f"{_text(point)}: {label} {leak.mean:.1f} ({leak.low:.1f} to {leak.high:.1f}) by {point.best}, "
        f"utility {utility.mean:.1f} ({utility.low:.1f} to {utility.high:.1f})"
    )
