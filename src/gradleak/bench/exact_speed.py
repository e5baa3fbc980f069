"""Processor time of `exact`: `python -m gradleak.bench.exact_speed --data FILE --batch-size 1 --out FILE.json`.

Batches of a JSON list of sentences, or of the lines of a text file, are drawn by consecutive seeds; a client sends
the gradient of each, and an attacker who knows the batch size reads it, once unmeasured before the first. What counts
is the time of the processor, not of the clock: run it with OMP_NUM_THREADS=1. The file keeps every batch, so that the
same command goes on where it was ended.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from gradleak.bench.local_steps import sentences
from gradleak.bench.near_rank import FIRST_SEED, measured, run
from gradleak.clients.text import Client
from gradleak.models.load import load_text_model


def summary(cells: Sequence[Mapping[str, Any]]) -> str:
    """The line of all batches."""
    spent = [cell["processor_seconds"] for cell in cells]
    total = {key: sum(cell[key] for cell in cells) for key in ("sentences", "whole", "certified", "certified_wrong")}
    return (
        f"{len(cells)} batches: mean {statistics.mean(spent):.2f} s of the processor, median "
        f"{statistics.median(spent):.2f}, {min(spent):.2f} to {max(spent):.2f}; "
        f"{total['whole']} of {total['sentences']} sentences whole, {total['certified']} certified, "
        f"{total['certified_wrong']} of them wrong"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m gradleak.bench.exact_speed")
    parser.add_argument("--data", type=Path, required=True, help="a JSON list of sentences, or a text file")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--batches", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    parser.add_argument("--budget", type=float, default=600.0, help="seconds for a batch")
    given = parser.parse_args(arguments)
    texts, model, warm = sentences(given.data), load_text_model(given.model), False

    def one(seed: int) -> dict[str, Any]:
        nonlocal warm
        chosen = random.Random(seed).sample(texts, given.batch_size)
        update = Client(model).update(chosen)
        if not warm:
            measured(model, update, chosen, seed, given.budget)
            warm = True
        return measured(model, update, chosen, seed, given.budget)

    settings = {"model": given.model, "batch_size": given.batch_size, "threads": torch.get_num_threads()}
    run(given.out, given.data, settings, range(given.first_seed, given.first_seed + given.batches), one, summary)


if __name__ == "__main__":
    main()
