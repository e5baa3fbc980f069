"""What leaks against training steps as one SVG figure, which stands alone or follows the theme of its page."""

from __future__ import annotations

from html import escape

from gradleak.experiments.checkpoints.result import Checkpoint, Checkpoints
from gradleak.report.axis import Axis, ticks
from gradleak.scoring.interval import Interval

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 420, 64, 28, 20, 62

# Colours of the page where there is one, and of its light theme where the figure stands alone.
STYLE = """
.timeline text { font: 13px system-ui, sans-serif; fill: var(--ink, #1d2430); }
.timeline .ground { fill: var(--card, #fff); } .timeline .grid { stroke: var(--line, #dcdfe5); }
.timeline .tick { fill: var(--soft, #5d6777); }
.timeline .attack .bar, .timeline .attack polyline { stroke: var(--attack, #b3261e); }
.timeline .attack circle { fill: var(--attack, #b3261e); }
.timeline .control .bar, .timeline .control polyline { stroke: var(--control, #7b8494); }
.timeline .control circle { fill: var(--control, #7b8494); }
.timeline polyline { fill: none; stroke-width: 1.5; } .timeline .bar { stroke-width: 2; }
"""


def timeline_figure(result: Checkpoints) -> str:
    """The attack's mean and interval at every step that is measured, and those of the control."""
    steps = [point.step for point in result.points]
    across, down = Axis(min(steps), max(steps), LEFT + 14, WIDTH - RIGHT), Axis(0, 100, HEIGHT - BOTTOM, TOP)
    description = f"{result.label} of the attack and its control against training steps, with 95 % intervals"
    return "".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="timeline" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
            f'aria-label="{escape(description)}"><desc>{escape(description)}</desc><style>{STYLE}</style>'
            f'<rect class="ground" width="{WIDTH}" height="{HEIGHT}"/>',
            *_axes(across, down, result.label),
            # The control stands a little aside, so that neither interval hides the other.
            *_series("control", [(p, p.control) for p in result.points if p.control], across, down, aside=5),
            *_series("attack", [(p, p.leak) for p in result.points if p.leak], across, down, aside=0),
            "</svg>\n",
        ]
    )


def _axes(across: Axis, down: Axis, label: str) -> list[str]:
    bottom, parts = HEIGHT - BOTTOM, []
    for value in range(0, 101, 20):
        y = down.at(value)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value}</text>')
    for step in filter(float.is_integer, ticks(across.first, across.last)):
        x = across.at(step)
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{bottom}"/>')
        parts.append(f'<text class="tick" x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{step:g}</text>')
    middle = (TOP + bottom) / 2
    parts.append(f'<text x="{WIDTH / 2:.0f}" y="{bottom + 42}" text-anchor="middle">training steps</text>')
    parts.append(f'<text transform="translate(18 {middle:.0f}) rotate(-90)" text-anchor="middle">')
    parts.append(f"{escape(label)}</text>")
    return parts


def _series(
    kind: str, values: list[tuple[Checkpoint, Interval]], across: Axis, down: Axis, aside: float
) -> list[str]:
    """A line through the means, and at each a point with its interval."""
    places = [(across.at(point.step) + aside, down.inside(value.mean)) for point, value in values]
    parts = [f'<g class="{kind}"><polyline points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in places)}"/>']
    for (point, value), (x, y) in zip(values, places, strict=True):
        low, high = down.inside(value.low), down.inside(value.high)
        parts.append(
            f"<g><title>step {point.step}, {kind}: {value}</title>"
            f'<line class="bar" x1="{x:.1f}" x2="{x:.1f}" y1="{low:.1f}" y2="{high:.1f}"/>'
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5"/></g>'
        )
    return [*parts, "</g>"]
