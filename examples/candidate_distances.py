"""Draws docs/images/candidate-distances.svg: how far every token of the vocabulary is from a real update's span.

python examples/candidate_distances.py docs/images/candidate-distances.svg
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from gradleak import Client, load_model
from gradleak.attacks.spans.candidates import TOLERANCE, first_inputs
from gradleak.attacks.spans.certify import attention_parts, joint_span

TEXTS = ["Her biopsy came back clear.", "We moved him to ward six.", "The loan was refused.", "Call me tonight."]
LABELS = [0, 1, 1, 0]
POSITION = 2
LEFT, RIGHT, TOP, BOTTOM, LOW = 60, 780, 30, 250, -9.0


def main(target: Path) -> None:
    model = load_model("minilm")
    span = joint_span(Client(model).update(TEXTS, LABELS).tensors, attention_parts(model, 0))
    assert span is not None
    tokens = torch.arange(len(model.token_embedding))
    states = torch.cat([first_inputs(model, part, POSITION + 1)[:, POSITION] for part in tokens.split(4096)])
    distances = span.distances(states).clamp_min(10**LOW).log10()
    limit = float((TOLERANCE * span.floors(states)).log10().median())
    true = {row[POSITION] for row in model.encode(TEXTS).sentences()}
    target.write_text(draw(distances, limit, {model.tokenizer.decode([t]): float(distances[t]) for t in true}))


def draw(distances: torch.Tensor, limit: float, true: dict[str, float]) -> str:
    """A histogram on a logarithmic axis, with the true tokens as named lines."""
    bins = 90
    counts = torch.histc(distances.float(), bins=bins, min=LOW, max=0)
    tallest = float(counts.max().log1p())
    width = (RIGHT - LEFT) / bins

    def across(value: float) -> float:
        return LEFT + (value - LOW) / -LOW * (RIGHT - LEFT)

    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 800 300" font-family="sans-serif" font-size="12">',
        '<rect width="800" height="300" fill="#fff"/>',
    ]
    for number, count in enumerate(counts.tolist()):
        height = (BOTTOM - TOP - 40) * float(torch.tensor(count).log1p()) / tallest
        if count:
            x, y = LEFT + number * width, BOTTOM - height
            parts.append(
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{width - 1:.1f}" height="{height:.1f}" fill="#9aa7b4"/>'
            )
    for number, (word, value) in enumerate(sorted(true.items(), key=lambda item: item[1])):
        x, y = across(value), TOP + 14 + 15 * number
        parts.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{y:.1f}" y2="{BOTTOM}" stroke="#0a7d4f" stroke-width="2"/>'
        )
        parts.append(f'<text x="{x + 5:.1f}" y="{y + 4:.1f}" fill="#0a7d4f">{word}</text>')
    x = across(limit)
    parts.append(
        f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{BOTTOM}" stroke="#b3261e" stroke-dasharray="5 4"/>'
    )
    parts.append(f'<text x="{x + 5:.1f}" y="{TOP - 8}" fill="#b3261e">what noise can explain</text>')
    parts.append(f'<line x1="{LEFT}" x2="{RIGHT}" y1="{BOTTOM}" y2="{BOTTOM}" stroke="#333"/>')
    for power in range(int(LOW), 1, 1):
        parts.append(f'<text x="{across(power):.1f}" y="{BOTTOM + 18}" text-anchor="middle">1e{power}</text>')
    parts.append(
        f'<text x="{(LEFT + RIGHT) / 2}" y="{BOTTOM + 40}" text-anchor="middle">distance from the span of the '
        f"gradient, all {len(distances):,} tokens at position {POSITION} (bar heights logarithmic)</text></svg>\n"
    )
    return "\n".join(parts)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
