"""How a step's time grows, as a figure of its own."""

from __future__ import annotations

from collections.abc import Sequence

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, GAP = 760, 300, 56, 46, 34, 40


def growth_figure(curves: dict[str, list[tuple[int, float]]], model: str) -> str:
    """Two panels: seconds of a step over tokens and over attacks, each beside a straight line through the origin."""
    half = (WIDTH - GAP) / 2
    panels = [
        _panel(curves["tokens"], 0, half, "tokens a sentence (8 attacks)"),
        _panel(curves["attacks"], half + GAP, half, "attacks at once (14 tokens)"),
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        f'font-size="13" role="img"><title>Seconds of one step on {model}</title>'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>{"".join(panels)}</svg>\n'
    )


def _panel(points: Sequence[tuple[int, float]], left: float, width: float, label: str) -> str:
    most_x, most_y = max(x for x, _ in points), 1.1 * max(y for _, y in points)

    def at(x: float, y: float) -> tuple[float, float]:
        return left + LEFT + (width - LEFT - 10) * x / most_x, HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * y / most_y

    slope = sum(y for _, y in points) / sum(x for x, _ in points)
    parts = [f'<text x="{left + LEFT}" y="18" fill="#333">seconds a step over {label}</text>']
    (x0, y0), (x1, y1) = at(0, 0), at(most_x, slope * most_x)
    parts.append(
        f'<line x1="{x0:.1f}" y1="{y0:.1f}" x2="{x1:.1f}" y2="{y1:.1f}" stroke="#bbb" stroke-dasharray="5 4"/>'
    )
    drawn = " ".join(f"{at(x, y)[0]:.1f},{at(x, y)[1]:.1f}" for x, y in points)
    parts.append(f'<polyline points="{drawn}" fill="none" stroke="#b3261e" stroke-width="2"/>')
    for x, y in points:
        px, py = at(x, y)
        parts.append(f'<circle cx="{px:.1f}" cy="{py:.1f}" r="4" fill="#b3261e"/>')
        parts.append(f'<text x="{px:.1f}" y="{py - 9:.1f}" text-anchor="middle" fill="#333">{y:.2f}</text>')
        parts.append(f'<text x="{px:.1f}" y="{HEIGHT - 24}" text-anchor="middle" fill="#666">{x}</text>')
    return "".join(parts)
