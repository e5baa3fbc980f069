"""A map as one SVG figure, which stands alone or follows the theme of the page it is in."""

from __future__ import annotations

from html import escape

from gradleak.experiments.map.result import LeakMap, MapCell
from gradleak.experiments.map.table import OPEN
from gradleak.scoring.interval import Interval
from gradleak.scoring.scale import Scale, scale_by

# Cells, the names of layers on the left, of modules above, shares below, and the baselines on the right.
WIDE, HIGH, LEFT, TOP, BELOW, GAP, SIDE = 92, 46, 92, 52, 34, 28, 192
# The strongest colour still lets the numbers be read, in both themes.
STRONGEST = 0.6

STYLE = """
.map text { font: 13px system-ui, sans-serif; fill: var(--ink, #1d2430); text-anchor: middle; }
.map .ground { fill: var(--card, #fff); } .map .frame { fill: none; stroke: var(--line, #dcdfe5); }
.map .heat { fill: var(--attack, #b3261e); } .map .calm { fill: var(--control, #7b8494); }
.map .open { fill: none; stroke: var(--control, #7b8494); stroke-dasharray: 3 4; }
.map .mean { font-weight: 650; } .map .range, .map .share { font-size: 11px; fill: var(--soft, #5d6777); }
.map .range { fill: var(--ink, #1d2430); } .map .side { text-anchor: end; } .map .begin { text-anchor: start; }
"""


def map_figure(result: LeakMap) -> str:
    """Layers downwards, modules across, the larger a leak the redder; on the right what they compare with."""
    width = LEFT + WIDE * len(result.columns) + GAP + SIDE
    height = TOP + HIGH * max(result.layers, 3) + BELOW
    description = f"{result.label} read from single parts of {result.spec.model}: layers downwards, modules across"
    return "".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="map" viewBox="0 0 {width} {height}" role="img" '
            f'aria-label="{escape(description)}"><desc>{escape(description)}</desc><style>{STYLE}</style>'
            f'<rect class="ground" width="{width}" height="{height}"/>',
            *_names(result),
            *_heat(result),
            *_beside(result),
            "</svg>\n",
        ]
    )


def _names(result: LeakMap) -> list[str]:
    parts = []
    for number in range(result.layers):
        y = TOP + HIGH * (number + 0.5) + 5
        parts.append(f'<text class="side" x="{LEFT - 10}" y="{y:.0f}">layer {number + 1}</text>')
    below = TOP + HIGH * result.layers + 18
    for number, column in enumerate(result.columns):
        x = LEFT + WIDE * (number + 0.5)
        words = column.split(" + ") if " + " in column else column.split(" ")
        for line, word in enumerate(words):
            y = TOP - 10 - 14 * (len(words) - 1 - line)
            parts.append(f'<text x="{x:.0f}" y="{y}">{escape(word)}</text>')
        parts.append(f'<text class="share" x="{x:.0f}" y="{below}">{result.share(column):.2g} %</text>')
    parts.append(f'<text class="share side" x="{LEFT - 10}" y="{below}">of the model</text>')
    return parts


def _heat(result: LeakMap) -> list[str]:
    scale = scale_by(result.metric)
    return [
        _cell(result.at(row + 1, column), LEFT + WIDE * number, TOP + HIGH * row, f"layer {row + 1}, {column}", scale)
        for number, column in enumerate(result.columns)
        for row in range(result.layers)
    ]


def _beside(result: LeakMap) -> list[str]:
    """The whole update, all layers, and guessing, in the same colours."""
    x = LEFT + WIDE * len(result.columns) + GAP
    layers, scale = result.all_layers, scale_by(result.metric)
    below_all = TOP + (1 if layers is None else 2) * HIGH
    control = _box(result.all.control, x, below_all, "guessing without the update", "calm", scale)
    parts = [
        f'<text class="begin" x="{x}" y="{TOP - 10}">beside them</text>',
        _cell(result.all, x, TOP, "all gradients", scale),
        *([] if layers is None else [_cell(layers, x, TOP + HIGH, "all layers", scale)]),
        control,
    ]
    share = [] if layers is None else [("all layers", f"{layers.share:.3g} %")]
    for row, (name, below) in enumerate([("all gradients", "100 %"), *share, ("guessing", "")]):
        y = TOP + HIGH * row + (20 if below else 28)
        parts.append(f'<text class="begin" x="{x + WIDE + 6}" y="{y}">{name}</text>')
        parts.append(f'<text class="share begin" x="{x + WIDE + 6}" y="{y + 16}">{below}</text>' if below else "")
    return parts


def _cell(cell: MapCell, x: float, y: float, name: str, scale: Scale) -> str:
    return _box(cell.leak, x, y, f"{name}, {cell.share:.2g} % of the model", "heat", scale)


def _box(interval: Interval | None, x: float, y: float, name: str, kind: str, scale: Scale) -> str:
    place = f'x="{x + 2}" y="{y + 2}" width="{WIDE - 4}" height="{HIGH - 4}" rx="4"'
    middle = x + WIDE / 2
    if interval is None:
        title = f"<title>{escape(name)}: not measured yet</title>"
        return f'<g>{title}<rect class="open" {place}/><text x="{middle:.0f}" y="{y + 28}">{OPEN}</text></g>'
    strength = STRONGEST * scale.strength(interval.mean)
    mean, _, bounds = scale.format(interval).partition(" ")
    return (
        f"<g><title>{escape(name)}: {scale.labelled(interval)}</title>"
        f'<rect class="{kind}" fill-opacity="{strength:.3f}" {place}/><rect class="frame" {place}/>'
        f'<text class="mean" x="{middle:.0f}" y="{y + 21}">{mean}</text>'
        f'<text class="range" x="{middle:.0f}" y="{y + 36}">{bounds}</text></g>'
    )
