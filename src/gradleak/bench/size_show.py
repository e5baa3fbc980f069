"""The table and the figure of `gradleak.bench.size`, made from its file."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

# The bar: the peak is at most so many times the weights in their type and the update.
BAR = 1.3
WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 420, 320, 60, 46, 34
COLOURS = {"exact": "#b3261e", "bag": "#1a6b9c", "lora-bag": "#2e7d32", "lora-contains": "#8e5a00"}


def table(kept: Mapping[str, Any]) -> str:
    """A line for every model, batch and attack."""
    lines = [
        "| model | parameters | batch | attack | weights + update | client's peak | attack's peak | of 1.3 × | "
        f"with the libraries' {kept['nothing']['anonymous'] / 1e9:.2f} GB | processor time | found |",
        "|---|--:|--:|---|--:|--:|--:|--:|--:|--:|---|",
    ]
    for cell in kept["cells"]:
        client, attack = cell["client"], cell["attack"]
        if "refused" in client or "refused" in attack:
            why = client.get("refused") or attack["refused"]
            lines.append(f"| {cell['model']} | | {cell['batch']} | {cell['way']} | | | | | | | refused: {why} |")
            continue
        held, peaks = needed(client), [above(kept, client), above(kept, attack)]
        lines.append(
            f"| {cell['model']} | {client['parameters'] / 1e9:.2f} B | {cell['batch']} | {cell['way']} | "
            f"{client['weight_bytes'] / 1e9:.2f} + {client['update_bytes'] / 1e9:.2f} GB | {peaks[0] / 1e9:.2f} GB | "
            f"{peaks[1] / 1e9:.2f} GB | {max(peaks) / BAR / held:.0%} | "
            f"{max(client['anonymous'], attack['anonymous']) / BAR / held:.0%} | "
            f"{client['processor_seconds']:.0f} + {attack['processor_seconds']:.0f} s | "
            f"{_found(attack, cell['batch'])} |"
        )
    return "\n".join(lines)


def needed(client: Mapping[str, Any]) -> int:
    """Bytes of the weights as they were saved and of the update."""
    return int(client["weight_bytes"] + client["update_bytes"])


def above(kept: Mapping[str, Any], process: Mapping[str, Any]) -> int:
    """The peak of what cannot be dropped, beyond what Python and the libraries take by themselves."""
    return int(max(0, process["anonymous"] - kept["nothing"]["anonymous"]))


def _found(attack: Mapping[str, Any], batch: int) -> str:
    if "in" in attack:
        rates = ", ".join(f"{rate:.2g}" for rate in attack["in"] if rate is not None)
        return f"false-alarm rate of what was in: {rates}"
    tokens = f"{attack['tokens_found']} of {attack['tokens']} tokens, {attack['tokens_wrong']} wrong"
    return f"{attack['whole']} of {batch} sentences, {attack['certified']} certified" if attack["whole"] else tokens


def figure(kept: Mapping[str, Any]) -> str:
    """Peaks and processor time over the bytes of weights and update, both on scales of powers of ten."""
    cells = [cell for cell in kept["cells"] if "refused" not in cell["client"] and "refused" not in cell["attack"]]
    peaks, times = [], []
    for cell in cells:
        held = needed(cell["client"])
        most = max(above(kept, cell["client"]), above(kept, cell["attack"]))
        peaks.append((cell["way"], held / 1e9, max(most, 1 << 20) / 1e9))
        times.append((cell["way"], held / 1e9, max(1.0, cell["attack"]["processor_seconds"])))
    panels = [
        _panel(peaks, 0, "peak in GB, beyond Python and libraries", BAR),
        _panel(times, WIDTH, "processor seconds of the attack", None),
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * WIDTH} {HEIGHT}" font-family="sans-serif" '
        f'font-size="12" role="img"><title>Memory and time over size</title>'
        f'<rect width="{2 * WIDTH}" height="{HEIGHT}" fill="#fff"/>{"".join(panels)}{_legend()}</svg>\n'
    )


def _panel(points: Sequence[tuple[str, float, float]], left: int, label: str, slope: float | None) -> str:
    xs = _decades([x for _, x, _ in points])
    ys = _decades([y for *_, y in points] + ([slope * x for _, x, _ in points] if slope else []))

    def at(x: float, y: float) -> tuple[float, float]:
        across = (math.log10(x) - xs[0]) / (xs[1] - xs[0])
        up = (math.log10(y) - ys[0]) / (ys[1] - ys[0])
        return left + LEFT + (WIDTH - LEFT - 16) * across, HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * up

    parts = [f'<text x="{left + LEFT}" y="18" fill="#333">{label}</text>']
    for power in range(xs[0], xs[1] + 1):
        px, py = at(10.0**power, 10.0 ** ys[0])
        parts.append(f'<text x="{px:.0f}" y="{py + 18:.0f}" text-anchor="middle" fill="#666">{10.0**power:g}</text>')
    for power in range(ys[0], ys[1] + 1):
        px, py = at(10.0 ** xs[0], 10.0**power)
        parts.append(f'<text x="{px - 8:.0f}" y="{py + 4:.0f}" text-anchor="end" fill="#666">{10.0**power:g}</text>')
        parts.append(f'<line x1="{px:.0f}" y1="{py:.0f}" x2="{left + WIDTH - 16}" y2="{py:.0f}" stroke="#eee"/>')
    if slope:
        (x0, y0), (x1, y1) = at(10.0 ** xs[0], slope * 10.0 ** xs[0]), at(10.0 ** xs[1], slope * 10.0 ** xs[1])
        parts.append(
            f'<line x1="{x0:.1f}" y1="{y0:.1f}" x2="{x1:.1f}" y2="{y1:.1f}" stroke="#999" stroke-dasharray="5 4"/>'
        )
    for way, x, y in points:
        px, py = at(x, y)
        parts.append(f'<circle cx="{px:.1f}" cy="{py:.1f}" r="4" fill="{COLOURS[way]}"/>')
    parts.append(f'<text x="{left + LEFT}" y="{HEIGHT - 8}" fill="#666">weights as saved + update, GB</text>')
    return "".join(parts)


def _decades(values: Sequence[float]) -> tuple[int, int]:
    """
    >>> _decades([0.2, 30.0])
    (-1, 2)
    """
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return low, max(high, low + 1)


def _legend() -> str:
    places = ((way, 2 * WIDTH - 120, 40 + 16 * number) for number, way in enumerate(COLOURS))
    return "".join(
        f'<circle cx="{x}" cy="{y}" r="4" fill="{COLOURS[way]}"/><text x="{x + 10}" y="{y + 4}">{way}</text>'
        for way, x, y in places
    )
