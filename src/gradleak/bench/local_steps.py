"""Sentences read back after local steps: `python -m gradleak.bench.local_steps --data FILE --client RULE --out FILE`.

Batches of a JSON list of sentences, or of the lines of a text file, are drawn by consecutive seeds. A client trains
on each by its rule, and an attacker who knows the rule and the batch size reads its update. The file keeps every
batch, so that the same command goes on where it was ended; updates take most of the time and are kept in a folder.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gradleak.bench.near_rank import FIRST_SEED, measured, run
from gradleak.clients.text import Client
from gradleak.models.load import load_text_model
from gradleak.updates.client_rule import ClientRule
from gradleak.updates.update import load_update


def sentences(path: Path) -> list[str]:
    """The sentences of a file, without blank ones."""
    text = path.read_text(encoding="utf-8")
    found = json.loads(text) if path.suffix == ".json" else text.splitlines()
    return [sentence.strip() for sentence in found if sentence.strip()]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m gradleak.bench.local_steps")
    parser.add_argument("--data", type=Path, required=True, nargs="+", help="JSON lists of sentences, or text files")
    parser.add_argument("--client", required=True, help="such as fedavg:epochs=5,batch=4,lr=1e-4,precision=fp64")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--updates", type=Path, required=True, help="the folder that updates are kept in")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--batches", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    parser.add_argument("--budget", type=float, default=1200.0, help="seconds for a batch")
    given = parser.parse_args(arguments)
    texts = [text for path in given.data for text in sentences(path)]
    model, rule = load_text_model(given.model), ClientRule.parse(given.client)

    def one(seed: int) -> dict[str, Any]:
        chosen, folder = random.Random(seed).sample(texts, given.batch_size), given.updates / str(seed)
        if not folder.exists():
            Client(model, client=rule).update(chosen).save(folder)
        return measured(model, load_update(folder, model), chosen, seed, given.budget)

    settings = {"model": given.model, "client": str(rule), "batch_size": given.batch_size, "budget": given.budget}
    run(given.out, given.data, settings, range(given.first_seed, given.first_seed + given.batches), one)


if __name__ == "__main__":
    main()
