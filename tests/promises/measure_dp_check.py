"""How often `dp-check` finds planted mistakes, and how often it calls a right implementation broken.

    python tests/promises/measure_dp_check.py --runs 20 --out docs/measurements/dp_check.json

A tiny BERT classifier, batches of four, fresh texts and noise in every run. Runs that the file has are not repeated.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from planted_dp import MISTAKES, HandMade
from tiny import tiny_model

from gradleak.audits.dp.sources import check_client
from gradleak.audits.spec import AuditSpec
from gradleak.bench.provenance import ABOUT, about
from gradleak.core.files import write_text
from gradleak.defenses import parse_defenses

CLIP, NOISE, UPDATES = 0.05, 1.0, 200


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    torch.set_num_threads(1)
    model = tiny_model("bert", "classification")
    clients = {each.__name__: [each(clip=CLIP, noise=NOISE)] for each in (HandMade, *MISTAKES)}
    clients["Opacus"] = parse_defenses([f"dpsgd:clip={CLIP},noise={NOISE}"])
    kept = json.loads(given.out.read_text()) if given.out.exists() else {"cells": {}}
    cells = kept["cells"]
    for run in range(given.runs):
        for name, defenses in clients.items():
            done = cells.setdefault(name, [])
            if len(done) > run:
                continue
            started = time.process_time()
            found = check_client(AuditSpec(batch_size=4, seed=run), updates=UPDATES, model=model, defenses=defenses)
            done.append(
                {
                    "broken": found.broken, "by_loss": found.least > found.promised, "right": found.right,
                    "estimate": round(found.estimate or 0.0, 3), "least": round(found.least, 3),
                    "noise": round(found.noise or 0.0, 3), "seconds": round(time.process_time() - started, 1),
                }
            )  # fmt: skip
            kept = {ABOUT: about("a tiny BERT, weights drawn", "invented sentences", before=kept), "cells": cells}
            write_text(given.out, json.dumps(kept) + "\n")
    for name, done in cells.items():
        counts = [sum(run[key] for run in done) for key in ("broken", "by_loss")]
        seconds = sorted(run["seconds"] for run in done)[len(done) // 2]
        print(f"{name}: {counts[0]} of {len(done)} called broken, {counts[1]} by the loss, median {seconds} s")


if __name__ == "__main__":
    main()
