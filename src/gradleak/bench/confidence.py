"""What the confidence of matching attacks says: `python -m gradleak.bench.confidence [MODEL] [ATTACK ...]`.

Attacks the same updates with few steps, which give gibberish, and with many, and prints the confidence of every
sentence beside how much of it is right.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gradleak.attacks.run import attack
from gradleak.clients.text import Client
from gradleak.core.output import say
from gradleak.models.load import load_text_model
from gradleak.models.text import TextModel
from gradleak.scoring.score import score

TEXTS = ("The loan was refused.", "Her biopsy came back clear.", "Rosa moved to ward six.", "He owes the bank money.")
STEPS = (2, 10, 50)
ATTACKS = ("dlg", "tag", "lamp-cos", "subspace")
HEADINGS = ("attack", "steps", "ROUGE-L", "confidence", "read back")


@dataclass(frozen=True)
class Reading:
    """One sentence as an attack read it back."""

    attack: str
    steps: int
    rouge_l: float
    confidence: float
    text: str


def readings(
    model: TextModel, attacks: Sequence[str] = ATTACKS, steps: Sequence[int] = STEPS, texts: Sequence[str] = TEXTS
) -> Iterator[Reading]:
    """Every text, one an update, read by every attack with so many steps."""
    updates = [Client(model).update([text], [0] if model.goal.labelled else None) for text in texts]
    for name in attacks:
        for count in steps:
            for text, found in zip(texts, attack(updates, model, name, steps=count), strict=True):
                (pair,) = score(found, [text], model).pairs
                yield Reading(name, count, pair.scores["rougeL"], pair.confidence, pair.reconstruction)


if __name__ == "__main__":
    target = load_text_model(sys.argv[1] if len(sys.argv) > 1 else "minilm")
    say(f"| {' | '.join(HEADINGS)} |", f"{'|---' * len(HEADINGS)}|")
    for each in readings(target, sys.argv[2:] or ATTACKS):
        figures = f"{each.steps} | {each.rouge_l:.0f} | {each.confidence:.2f}"
        say(f"| `{each.attack}` | {figures} | {each.text} |")
