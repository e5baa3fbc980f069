"""What guessing reaches on batches of other benches: `python -m gradleak.bench.control --data FILE --out FILE.json`.

Batches are drawn by the same seeds, and sentences of ordinary language stand in for an attack. A guess needs the
number of sentences alone, so the update that it is asked about is of one sentence.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gradleak.bench.adamw import read_rows
from gradleak.bench.local_steps import sentences
from gradleak.bench.near_rank import FIRST_SEED, measured
from gradleak.bench.provenance import ABOUT, about
from gradleak.clients.text import Client
from gradleak.core.files import write_text
from gradleak.core.output import say
from gradleak.models.load import load_text_model
from gradleak.models.text import TextModel
from gradleak.scoring.interval import format_interval, mean_interval
from gradleak.updates.manifest import Known
from gradleak.updates.update import Update

# Seconds for a batch: far more than sentences take to be drawn.
BUDGET = 600.0


def guessed_at(model: TextModel, text: str, size: int) -> Update:
    """An update that says of itself that it is of so many sentences."""
    labels = [0] if model.goal.label_choices(model) else None
    own = Client(model).update([text], labels)
    return Update(own.tensors, own.manifest.model_copy(update={"known": Known(batch_size=size)}))


def line(cells: Sequence[Mapping[str, Any]]) -> str:
    parts = []
    for size in sorted({cell["batch_size"] for cell in cells}):
        own = [cell for cell in cells if cell["batch_size"] == size]
        whole = mean_interval([100 * cell["whole"] / size for cell in own])
        rouge = mean_interval([value for cell in own for value in cell["rouge_1"]])
        parts.append(f"{size}: whole {format_interval(whole)}, ROUGE-1 {format_interval(rouge)}")
    return "; ".join(parts)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m gradleak.bench.control")
    parser.add_argument("--data", type=Path, required=True, nargs="+", help="a .tsv table, or sentences in files")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--batch-size", type=int, nargs="+", default=[1, 4, 16, 32, 64])
    parser.add_argument("--batches", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    parser.add_argument("--text-column", type=int, default=4)
    parser.add_argument("--label-column", type=int, default=2)
    given = parser.parse_args(arguments)
    texts = [
        text
        for path in given.data
        for text in (
            (row[0] for row in read_rows(path, given.text_column, given.label_column))
            if path.suffix == ".tsv"
            else sentences(path)
        )
    ]
    model = load_text_model(given.model)
    cells = []
    for size in given.batch_size:
        for seed in range(given.first_seed, given.first_seed + given.batches):
            chosen = random.Random(seed).sample(texts, size)
            cell = measured(model, guessed_at(model, chosen[0], size), chosen, seed, BUDGET, "control")
            cells.append({"batch_size": size, **cell})
    settings = {"model": given.model, "attack": "control"}
    kept = {ABOUT: about(given.model, given.data), "settings": settings, "cells": cells}
    write_text(given.out, json.dumps(kept, indent=1) + "\n")
    say(line(cells))


if __name__ == "__main__":
    main()
