"""Certified sentences over all families and clients, and how many of them were never in the batch.

    python tests/conformance/certificates.py --until 5000 --out docs/measurements/certificates.json

Every batch is of a tiny model with weights of its own: different sentences, one of them twice, one that begins like
another, or one that repeats a token. `exact` reads what the client sends, knowing the batch size alone. What the file
has is not repeated, and the same command goes on until so many sentences are certified.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from table import LORA, PAIRED, TEXT_CASES, Case, one_line
from tiny import secret_of, tiny_model

from gradleak import Budget, Client, GradleakError, TextModel, attack, load_model
from gradleak.bench.provenance import about
from gradleak.core.files import write_text
from gradleak.data.texts import read_data

LAYERS, WIDTH = 4, 64
SECONDS = 8
# Where nothing was certified in so many batches, no more are tried.
PATIENCE = 3
# What a client does: its rule, its defences, and whether it trains adapters.
CLIENTS: dict[str, tuple[str, tuple[str, ...], bool]] = {
    "SGD": ("fedsgd", (), False),
    "SGD, frozen embeddings": ("fedsgd", ("frozen",), False),
    "SGD, dropout": ("fedsgd:mode=train", (), False),
    # Steps so small that nothing drifts, in fp64 so that rounding does not hide them; then steps that drift.
    "FedAvg, six small steps": ("fedavg:epochs=2,batch=1,lr=1e-7,precision=fp64,wire=fp64", (), False),
    "FedAvg, six large steps": ("fedavg:epochs=2,batch=1,lr=1e-3", (), False),
    "AdamW, one step": ("adamw:lr=2e-2,batch=3", (), False),
    "LoRA": ("fedsgd", (), True),
}
KINDS = ("different", "twice", "begins alike", "repeats a token")
WORDS = range(3, 8)

# A batch as it is kept: its kind, sentences in it, certified, of these wrong, seconds.
Batch = tuple[str, int, int, int, float]


def drawn(kind: str, rng: random.Random) -> list[str]:
    """Three sentences as they may come in a training: beginnings of sentences of the built-in corpus."""
    chosen = [" ".join(row.text.split()[: rng.choice(WORDS)]) for row in rng.sample(list(read_data()), 3)]
    first, second, third = chosen
    if kind == "twice":
        return [first, first, second]
    if kind == "begins alike":
        return [first, f"{first} {second.split()[-1]}", third]
    if kind == "repeats a token":
        return [f"{first} {' '.join([first.split()[-1]] * rng.choice((1, 2, 3)))}", second, third]
    return chosen


def model_of(case: Case, adapters: bool, seed: int) -> TextModel:
    model = tiny_model(*case, layers=LAYERS, width=WIDTH, seed=seed)
    if not adapters:
        return model
    lora = f"{LORA}{PAIRED if model.goal.paired else ''}"
    return load_model(model.module, tokenizer=model.tokenizer, task=model.task, lora=lora)


def measured(case: Case, client: str, kind: str, seed: int) -> Batch:
    """One batch attacked; wrong is what is certified more often than it was in the batch."""
    rule, defenses, adapters = CLIENTS[client]
    model, rng = model_of(case, adapters, seed), random.Random(f"{case} {client} {seed}")
    texts = drawn(kind, rng)
    labels: list[Any] | None = None
    if model.goal.labelled:
        others = drawn("different", rng)
        labels = others if model.goal.paired else [model.goal.drawn_label(model, text, rng) for text in texts]
    update = Client(model, ("batch_size",), client=rule, defenses=defenses).update(texts, labels, secret_of(seed))
    started = time.monotonic()
    (found,) = attack(update, model, "exact", seed=seed, budget=Budget(seconds=SECONDS))
    sides = {"source": texts, "target": labels} if model.goal.paired else {None: texts}
    truth = Counter(
        (side, tuple(model.content(row)))
        for side, own in sides.items()
        for row in model.encode([str(text) for text in own or ()]).sentences()
    )
    proved = Counter((sentence.side, tuple(sentence.tokens)) for sentence in found.sentences if sentence.certified)
    wrong = proved - truth
    return kind, truth.total(), proved.total(), wrong.total(), round(time.monotonic() - started, 1)


def todo(cells: dict[str, Any]) -> Iterator[tuple[str, Case, str, str, int]]:
    """Always of the family and client that had the least so far, a second counting as much as a batch."""
    places = {
        f"{case[0]}, {case[1]}, {client}": (case, client, place + number)
        for place, case in enumerate(TEXT_CASES)
        for number, client in enumerate(CLIENTS)
    }
    while places:
        for key in [key for key in places if _hopeless(cells.get(key, []))]:
            del places[key]
        key = min(places, key=lambda key: sum(1 + batch[4] for batch in cells.get(key, [])))
        case, client, place = places[key]
        number = len(cells.get(key, []))
        yield key, case, client, KINDS[(place + number) % len(KINDS)], number


def _hopeless(done: Any) -> bool:
    return "refused" in done or (len(done) >= PATIENCE and not any(batch[2] for batch in done))


def total(cells: dict[str, Any]) -> tuple[int, int, int]:
    """Batches, certified sentences, and those of them that are wrong."""
    batches = [batch for done in cells.values() if isinstance(done, list) for batch in done]
    return len(batches), sum(batch[2] for batch in batches), sum(batch[3] for batch in batches)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--until", type=int, default=5000, help="so many certified sentences are enough")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="end after so long; the file is kept")
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    kept = json.loads(given.out.read_text(encoding="utf-8")) if given.out.exists() else {"cells": {}}
    kept["about"] = about("tiny models of all families, weights drawn", "the built-in corpus", before=kept)
    cells, ends = kept["cells"], time.monotonic() + 60 * given.minutes
    for key, case, client, kind, seed in todo(cells):
        if total(cells)[1] >= given.until or time.monotonic() > ends:
            break
        try:
            cells.setdefault(key, []).append(measured(case, client, kind, seed))
        except GradleakError as error:
            cells[key] = {"refused": one_line(error)}
        print(key, cells[key] if "refused" in cells[key] else cells[key][-1], flush=True)
        write_text(given.out, json.dumps(kept) + "\n")
    print("{} batches: {} sentences certified, {} of them wrong".format(*total(cells)))


if __name__ == "__main__":
    main()
