"""How much of a batch `exact` reads for every task: `python -m gradleak.bench.tasks --data FILE --out FILE`.

Batches are drawn from a seed, labels and hidden tokens too; heads that the model lacks are new, as always. What a run
has measured stays in its file, and the same command goes on from there.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gradleak.attacks.run import attack
from gradleak.bench.provenance import ABOUT, about
from gradleak.clients.text import Client
from gradleak.core.files import write_text
from gradleak.core.output import say
from gradleak.core.secret import Secret
from gradleak.models.load import load_text_model
from gradleak.models.tasks import Task
from gradleak.models.text import TextModel
from gradleak.scoring.score import score

# Tasks, and how many classes their heads have: CoNLL-2003 has nine tags.
CLASSES: dict[Task, int | None] = {
    "classification": 2,
    "multi-label": 6,
    "regression": None,
    "token-classification": 9,
    "masked-lm": None,
}
SIZES = (1, 4, 8)
FIRST_SEED = 300


def measured(model: TextModel, texts: Sequence[str], seed: int, budget: float) -> dict[str, Any]:
    """One batch: how many sentences came back whole, how many of them proved, and how many labels are right."""
    task, rng = model.goal, random.Random(seed)
    labels = [task.drawn_label(model, text, rng) for text in texts] if task.labelled else None
    update = Client(model).update(texts, labels, Secret(bytes(32)).child("bench", seed))
    started = time.monotonic()
    (found,) = attack(update, model, "exact", seed=seed, budget=budget)
    pairs = score(found, texts, model).pairs
    whole = [pair for pair in pairs if pair.scores["exact_match"] == 100]
    proved = [pair for pair in pairs if pair.certified]
    return {
        "seed": seed,
        "sentences": len(texts),
        "whole": len(whole),
        "certified": len(proved),
        "certified_wrong": len(proved) - sum(pair.certified for pair in whole),
        "labels": None if labels is None else _right(labels, found.labels or ()),
        "status": found.status,
        "seconds": round(time.monotonic() - started, 1),
    }


def _right(labels: Sequence[Any], found: Sequence[Any]) -> int:
    """How many labels of a batch were read, as a bag; numbers to two decimals."""
    left = [round(label, 2) if isinstance(label, float) else label for label in labels]
    for label in found:
        own = round(label, 2) if isinstance(label, float) else label
        if own in left:
            left.remove(own)
    return len(labels) - len(left)


def read_lines(path: Path) -> list[str]:
    """A text a line; of a table the last column."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [line.rpartition("\t")[2].strip() for line in lines if line.strip()]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m gradleak.bench.tasks")
    parser.add_argument("--data", type=Path, required=True, help="a text a line; of a table the last column")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--tasks", default=",".join(CLASSES))
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="sentences of a batch")
    parser.add_argument("--batches", type=int, default=5)
    parser.add_argument("--budget", type=float, default=120.0, help="seconds for a batch")
    given = parser.parse_args(arguments)
    texts = read_lines(given.data)
    kept = json.loads(given.out.read_text(encoding="utf-8")) if given.out.exists() else {"cells": []}
    cells = kept["cells"]
    for size in map(int, given.sizes.split(",")):
        for task in given.tasks.split(","):
            model: TextModel | None = None
            for seed in range(FIRST_SEED, FIRST_SEED + given.batches):
                key = {"model": given.model, "task": task, "batch_size": size, "budget": given.budget}
                if any(cell["seed"] == seed and key.items() <= cell.items() for cell in cells):
                    continue
                model = model or load_text_model(given.model, task=task, num_labels=CLASSES[task])
                cells.append(key | measured(model, random.Random(seed).sample(texts, size), seed, given.budget))
                kept = {ABOUT: about(given.model, given.data, before=kept), "cells": cells}
                write_text(given.out, json.dumps(kept, indent=1) + "\n")
            own = [cell for cell in cells if cell["task"] == task and cell["batch_size"] == size]
            say(f"{task}, B = {size}: {summary(own)}")


def summary(cells: Sequence[dict[str, Any]]) -> str:
    """The sums over batches in a line."""
    total = {key: sum(cell[key] for cell in cells) for key in ("sentences", "whole", "certified", "certified_wrong")}
    labels = [cell["labels"] for cell in cells if cell["labels"] is not None]
    read = f", labels {sum(labels)} of {total['sentences']}" if labels else ""
    seconds = sorted(cell["seconds"] for cell in cells)
    return (
        f"{total['whole']} of {total['sentences']} sentences whole, {total['certified']} certified "
        f"({total['certified_wrong']} wrong){read}; median {seconds[len(seconds) // 2]} s"
    )


if __name__ == "__main__":
    main()
