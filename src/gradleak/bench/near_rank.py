"""Batches that nearly fill a decoder's layers: `python -m gradleak.bench.near_rank --data FILE --out FILE.json`.

Sentences of a JSON list are drawn by consecutive seeds until their states take all but a few of the model's
dimensions. A client sends the gradient, and an attacker who knows the batch size reads it. The file keeps every
batch, so that the same command goes on where it was ended.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gradleak.attacks.exact.growing import Prefix
from gradleak.attacks.run import attack
from gradleak.bench.provenance import ABOUT, about
from gradleak.clients.text import Client
from gradleak.core.errors import GradleakError
from gradleak.core.files import write_text
from gradleak.core.output import say
from gradleak.models.load import load_text_model
from gradleak.models.text import TextModel
from gradleak.scoring.interval import format_interval, mean_interval
from gradleak.scoring.text import rouge
from gradleak.updates.update import Update

# Rules were chosen on seeds below this one.
FIRST_SEED = 1000
# The dimensions that a batch may leave over: one at least, or there is no span.
NEAR = 8
# What is printed of a batch when it is done.
SHOWN = ("sentences", "whole", "certified", "seconds", "processor_seconds")


def drawn(texts: Sequence[str], model: TextModel, seed: int, near: int = NEAR) -> tuple[list[str], int]:
    """Sentences whose states leave 1 to `near` dimensions over, and how many; they are drawn in a random order."""
    learned = model.adapter.positions is not None
    chosen: list[str] = []
    states: set[tuple[int, tuple[int, ...]]] = set()
    for text in random.Random(seed).sample(list(texts), len(texts)):
        (row,) = model.encode([text]).sentences()
        both = states | set(Prefix(0, tuple(row[:-1])).states(learned))  # nothing is predicted from the last
        if len(row) > 1 and len(both) < model.width:
            chosen, states = [*chosen, text], both
        if len(states) >= model.width - near:
            return chosen, model.width - len(states)
    raise GradleakError("the texts together have fewer states than the model has dimensions; give more of them")


def measured(
    model: TextModel, update: Update, texts: Sequence[str], seed: int, budget: float, name: str = "exact"
) -> dict[str, Any]:
    """One update attacked, and what of its texts came back."""
    started = time.process_time()
    (found,) = attack(update, model, name, seed=seed, budget=budget)
    spent = time.process_time() - started
    own = [model.content(row) for row in model.encode(list(texts)).sentences()]
    returned = [sentence.tokens for sentence in found.sentences]
    best = [
        max((rouge(text, sentence.text)["rouge1"] for sentence in found.sentences), default=0.0) for text in texts
    ]
    return {
        "seed": seed,
        "sentences": len(own),
        "whole": sum(row in returned for row in own),
        "given": len(returned),
        "certified": sum(sentence.certified for sentence in found.sentences),
        "certified_wrong": sum(s.certified and s.tokens not in own for s in found.sentences),
        "rouge_1": [round(value, 1) for value in best],
        "seconds": round(found.seconds, 1),
        "processor_seconds": round(spent, 3),
        "status": found.status,
        "notes": found.notes,
    }


def summary(cells: Sequence[Mapping[str, Any]]) -> str:
    """The line of all batches. Intervals take sentences as independent, though batches share an attack."""
    total = {
        key: sum(cell[key] for cell in cells)
        for key in ("sentences", "whole", "given", "certified", "certified_wrong")
    }
    whole = mean_interval([100.0] * total["whole"] + [0.0] * (total["sentences"] - total["whole"]))
    rouge = mean_interval([value for cell in cells for value in cell["rouge_1"]])
    seconds = sorted(cell["seconds"] for cell in cells)
    return (
        f"{len(cells)} batches: {total['whole']} of {total['sentences']} sentences whole {format_interval(whole)}; "
        f"ROUGE-1 {format_interval(rouge)}; {total['given']} given, {total['certified']} certified, "
        f"{total['certified_wrong']} of them wrong; median {seconds[len(seconds) // 2]} s, longest {seconds[-1]} s"
    )


def run(
    out: Path,
    data: Path | Sequence[Path],
    settings: Mapping[str, Any],
    seeds: Sequence[int],
    one: Callable[[int], dict[str, Any]],
    summary: Callable[[Sequence[Mapping[str, Any]]], str] = summary,
) -> None:
    """Measure every seed that the file does not have yet, and keep it there with what was measured and how."""
    kept = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}
    if kept.get("settings") != settings:
        kept = {}
    cells = kept.get("cells", [])
    for seed in seeds:
        if any(cell["seed"] == seed for cell in cells):
            continue
        cells.append(one(seed))
        kept = {ABOUT: about(settings["model"], data, before=kept), "settings": settings, "cells": cells}
        write_text(out, json.dumps(kept, indent=1) + "\n")
        say(f"seed {seed}: {json.dumps({name: cells[-1][name] for name in SHOWN if name in cells[-1]})}")
    say(summary(cells))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m gradleak.bench.near_rank")
    parser.add_argument("--data", type=Path, required=True, help="a JSON list of sentences")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--batches", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    parser.add_argument("--budget", type=float, default=1200.0, help="seconds for a batch")
    given = parser.parse_args(arguments)
    texts = [text for text in json.loads(given.data.read_text(encoding="utf-8")) if text.strip()]
    model = load_text_model(given.model)

    def one(seed: int) -> dict[str, Any]:
        chosen, outside = drawn(texts, model, seed)
        return {"outside": outside, **measured(model, Client(model).update(chosen), chosen, seed, given.budget)}

    settings = {"model": given.model, "budget": given.budget}
    run(given.out, given.data, settings, range(given.first_seed, given.first_seed + given.batches), one)


if __name__ == "__main__":
    main()
