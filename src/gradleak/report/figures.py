"""Figures as inline SVG, drawn with the page's own colours so that they follow its theme."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from gradleak.audits.results import Results, Trial
from gradleak.scoring.metrics import labels_of

# Lines beyond this number would only blacken the figure and swell the page.
MOST_TRACES = 60

WIDTH, ROW, LEFT, RIGHT, TOP = 640, 44, 146, 20, 8


def score_figure(results: Results) -> str:
    """Each metric's mean and interval for the attack, above the control's, on one scale from 0 to 100."""
    labels = labels_of(results.summary)
    height = TOP + ROW * len(labels) + 26
    parts = [_open(height, "Scores of the attack beside its control, 0 to 100, with 95 % intervals")]
    for value in range(0, 101, 25):
        x = _place(value)
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{height - 22}"/>')
        parts.append(f'<text class="tick" x="{x:.1f}" y="{height - 6}" text-anchor="middle">{value}</text>')
    for number, (name, label) in enumerate(labels.items()):
        y = TOP + ROW * number + 16
        parts.append(f'<text class="label" x="{LEFT - 12}" y="{y + 10}" text-anchor="end">{escape(label)}</text>')
        for kind, interval, where in (
            ("attack", results.summary[name], y),
            ("control", results.control[name], y + 14),
        ):
            low, mean, high = (_place(v) for v in (interval.low, interval.mean, interval.high))
            title = escape(f"{label}, {kind}: {interval.mean:.1f} ({interval.low:.1f} to {interval.high:.1f})")
            parts.append(
                f'<g class="{kind}"><title>{title}</title>'
                f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{where}" y2="{where}"/>'
                f'<circle cx="{mean:.1f}" cy="{where}" r="5"/></g>'
            )
    return "".join([*parts, "</svg>"])


def trace_figure(trials: Sequence[Trial]) -> str:
    """The attack's loss over its steps, a line a trial."""
    traces = [trial.reconstruction.trace for trial in trials if len(trial.reconstruction.trace) > 1]
    if not traces:
        return ""
    traces = traces[:: -(-len(traces) // MOST_TRACES)]
    height, bottom = 200, 28
    last = max(point.step for trace in traces for point in trace) or 1
    top = max(point.loss for trace in traces for point in trace) or 1.0
    parts = [_open(height, "The attack's loss over its steps, one line a trial")]
    for share in (0.0, 0.5, 1.0):
        y = TOP + (1 - share) * (height - bottom - TOP)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{share * top:.3g}</text>')
    for step in (0, last // 2, last):
        x = _place(100 * step / last)
        parts.append(f'<text class="tick" x="{x:.1f}" y="{height - 8}" text-anchor="middle">{step}</text>')
    for trace in traces:
        points = " ".join(
            f"{_place(100 * p.step / last):.1f},{TOP + (1 - p.loss / top) * (height - bottom - TOP):.1f}"
            for p in trace
        )
        parts.append(f'<polyline class="trace" points="{points}"/>')
    return "".join([*parts, "</svg>"])


def _open(height: int, description: str) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(description)}">'
        f"<desc>{escape(description)}</desc>"
    )


def _place(value: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * value / 100
