"""What is read of full gradients beyond the rank limit: `python -m gradleak.bench.crowded --data FILE --out FILE`.

Batches of a list of sentences (JSON, or a line each) are drawn by consecutive seeds, plain autograd makes the
gradient of their mean loss, and an attacker who knows the batch size reads it. The file keeps every batch, so that
the same command goes on where it was ended.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gradleak.bench.local_steps import sentences
from gradleak.bench.lora import FIRST_SEED, measured, summary
from gradleak.bench.near_rank import run
from gradleak.models.load import load_text_model


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m gradleak.bench.crowded")
    parser.add_argument("--data", type=Path, required=True, help="a JSON list of sentences, or a sentence a line")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--attack", default="soft")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--batches", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    parser.add_argument("--budget", type=float, default=1200.0, help="seconds for a batch")
    given = parser.parse_args(arguments)
    texts, model = sentences(given.data), load_text_model(given.model)

    def one(seed: int) -> dict[str, Any]:
        batch = random.Random(seed).sample(texts, given.batch_size)
        return measured(model, batch, seed, given.budget, given.attack)

    settings = {name: getattr(given, name) for name in ("model", "attack", "batch_size", "budget")}
    run(given.out, given.data, settings, range(given.first_seed, given.first_seed + given.batches), one, summary)


if __name__ == "__main__":
    main()
