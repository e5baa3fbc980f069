"""Long texts: `python -m gradleak.bench.long --model smollm2 --data FILE --tokens 512 --out FILE.json`.

Texts of so many tokens are cut from the rows of a data file, drawn by consecutive seeds; a client sends the gradient
of each alone, and an attacker who knows that it is one text attacks it. The file keeps every text's figures, so that
the same command goes on where it was ended.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gradleak.attacks.run import attack
from gradleak.bench.near_rank import run
from gradleak.clients.text import Client
from gradleak.core.errors import GradleakError
from gradleak.data.texts import Row, read_data
from gradleak.data.windows import windows
from gradleak.models.load import load_text_model
from gradleak.models.text import TextModel
from gradleak.scoring.named import named
from gradleak.scoring.score import score

# Nothing was chosen on what these draw.
FIRST_SEED = 1000


def drawn_text(rows: Sequence[Row], model: TextModel, tokens: int, seed: int) -> str:
    """The first piece of exactly so many tokens of a row that has one; a special token at either end counts."""
    for row in random.Random(seed).sample(list(rows), len(rows)):
        for text, _ in windows(row.text, model, tokens):
            return text
    raise GradleakError(f"no text of the data has {tokens} tokens")


def measured(model: TextModel, text: str, name: str, seed: int, budget: float) -> dict[str, Any]:
    """One text attacked, and what of it came back."""
    labels = [seed % model.num_labels] if model.task == "classification" else None
    update = Client(model).update([text], labels)
    started = time.process_time()
    (found,) = attack(update, model, name, seed=seed, budget=budget)
    spent, scores, tokens = (
        time.process_time() - started,
        score(found, [text], model),
        named(found.bag, [text], model),
    )
    return {
        "seed": seed,
        "tokens": len(model.encode([text]).sentences()[0]),
        "whole": scores.metrics["exact_match"] == 100,
        "certified": any(sentence.certified for sentence in found.sentences),
        "rougeL": round(scores.metrics["rougeL"], 1),
        "tokens_named": round(tokens.recall, 1),
        "tokens_right": round(tokens.precision, 1),
        "processor_seconds": round(spent, 1),
        "peak_memory_mb": None if found.peak_memory_mb is None else round(found.peak_memory_mb),
        "status": found.status,
        "notes": found.notes,
    }


def summary(cells: Sequence[Mapping[str, Any]]) -> str:
    """The table line of all texts."""
    spent = sorted(cell["processor_seconds"] for cell in cells)
    return (
        f"{sum(cell['whole'] for cell in cells)} of {len(cells)} texts whole, "
        f"{sum(cell['certified'] for cell in cells)} certified, "
        f"ROUGE-L {sum(cell['rougeL'] for cell in cells) / len(cells):.1f}, "
        f"tokens named {sum(cell['tokens_named'] for cell in cells) / len(cells):.1f} %; "
        f"median {spent[len(spent) // 2]} s of the processor, "
        f"at most {max(cell['peak_memory_mb'] or 0 for cell in cells)} MB"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m gradleak.bench.long")
    parser.add_argument("--data", type=Path, required=True, help="a data file of long texts")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--attack", default="exact")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--texts", type=int, default=6)
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    parser.add_argument("--budget", type=float, default=900.0, help="seconds for a text")
    given = parser.parse_args(arguments)
    rows, model = read_data(given.data), load_text_model(given.model)
    settings = {name: getattr(given, name) for name in ("model", "attack", "tokens", "budget")}

    def one(seed: int) -> dict[str, Any]:
        return measured(model, drawn_text(rows, model, given.tokens, seed), given.attack, seed, given.budget)

    run(given.out, given.data, settings, range(given.first_seed, given.first_seed + given.texts), one, summary)


if __name__ == "__main__":
    main()
