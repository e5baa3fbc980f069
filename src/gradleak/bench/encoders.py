"""Classifiers near and beyond the rank limit: `python -m gradleak.bench.encoders --data FILE --out FILE.json`.

Sentences of a table such as CoLA's, or of a text file for each class, are drawn by consecutive seeds. A client sends
the gradient of the batch, and an attacker who knows the batch size reads it. The file keeps every batch, so that the
same command goes on where it was ended.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gradleak.bench.adamw import read_rows
from gradleak.bench.local_steps import sentences
from gradleak.bench.near_rank import FIRST_SEED, measured, run
from gradleak.clients.text import Client
from gradleak.models.load import load_text_model


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m gradleak.bench.encoders")
    parser.add_argument("--data", type=Path, required=True, nargs="+", help="a .tsv table, or a text file a class")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--batches", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    parser.add_argument("--budget", type=float, default=600.0, help="seconds for a batch")
    parser.add_argument("--text-column", type=int, default=4)
    parser.add_argument("--label-column", type=int, default=2)
    given = parser.parse_args(arguments)
    if given.data[0].suffix == ".tsv":
        rows = [row for path in given.data for row in read_rows(path, given.text_column, given.label_column)]
    else:
        rows = [(text, label) for label, path in enumerate(given.data) for text in sentences(path)]
    model = load_text_model(given.model)

    def one(seed: int) -> dict[str, Any]:
        texts, labels = zip(*random.Random(seed).sample(rows, given.batch_size), strict=True)
        encoded = model.encode(list(texts)).sentences()
        cell = measured(model, Client(model).update(list(texts), list(labels)), texts, seed, given.budget)
        tokens = {"tokens": sum(map(len, encoded)), "different": len({token for row in encoded for token in row})}
        return {**tokens, "longest": max(map(len, encoded)), **cell}

    settings = {
        "model": given.model,
        "data": [path.name for path in given.data],
        "batch_size": given.batch_size,
        "budget": given.budget,
    }
    run(given.out, given.data, settings, range(given.first_seed, given.first_seed + given.batches), one)


if __name__ == "__main__":
    main()
