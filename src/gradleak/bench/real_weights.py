"""What `exact` reads of trained weights: `python -m gradleak.bench.real_weights --cola FILE --enron FILE --out FILE`.

Every cell is an audit of a built-in model, as `gradleak audit` does it, of which no text is kept. The same command
goes on where it was ended.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gradleak.audits.results import Results
from gradleak.audits.run import audit
from gradleak.bench.pages import fill_page
from gradleak.bench.provenance import ABOUT, about
from gradleak.core.files import write_text
from gradleak.core.output import say
from gradleak.scoring.interval import Interval, format_interval, share_interval

BENCH = "gradleak.bench.real_weights"
# Models and the data that they are trained on; nothing was chosen on what this seed draws.
MODELS = {"minilm": "cola", "mpnet": "cola", "smollm2": "enron", "gemma3-270m": "enron"}
SIZES = (1, 4, 8)
SEED, TRIALS, SECONDS = 9100, 5, 2400
COLUMNS: dict[str, dict[str, Any]] = {"cola": {"text_column": "4", "label_column": "2"}, "enron": {}}


def settings_of(model: str, data: Path, size: int, trials: int) -> dict[str, Any]:
    """What an audit is called with; `gradleak audit` takes the same."""
    return {
        "model": model,
        "data": str(data),
        **COLUMNS[MODELS[model]],
        "attack": "exact",
        "batch_size": size,
        "trials": trials,
        "seed": SEED,
        "budget": f"{SECONDS}s",
    }


def command(settings: Mapping[str, Any]) -> str:
    """
    >>> command({"model": "mpnet", "data": "x/cola_train.tsv", "batch_size": 4})
    'gradleak audit --model mpnet --data cola_train.tsv --batch-size 4'
    """
    told = {**settings, "data": Path(settings["data"]).name}
    return " ".join(["gradleak audit", *(f"--{name.replace('_', '-')} {value}" for name, value in told.items())])


def figures(results: Results) -> dict[str, Any]:
    """What is kept of an audit: figures alone."""
    trials = []
    for trial in results.trials:
        wrong = [pair for pair in trial.pairs if pair.certified and pair.scores["exact_match"] < 100]
        trials.append(
            {
                "seed": trial.seed,
                "status": trial.status,
                "sentences": len(trial.truth),
                "whole": sum(pair.scores["exact_match"] == 100 for pair in trial.pairs),
                "certified": sum(pair.certified for pair in trial.pairs),
                "certified_wrong": len(wrong),
                "rougeL": trial.scores["rougeL"],
                "control_rougeL": trial.control_scores["rougeL"],
                "seconds": round(trial.seconds, 1),
                "peak_memory_mb": trial.peak_memory_mb,
            }
        )
    means = {
        name: {metric: table[metric].model_dump() for metric in ("rougeL", "exact_match")}
        for name, table in (("summary", results.summary), ("control", results.control))
    }
    return {"status": results.status, "family": results.scenario.family, **means, "trials": trials}


def table(cells: Sequence[Mapping[str, Any]]) -> str:
    """A line for every model and batch size."""
    lines = [
        "| model | family | data | batch | batches | whole sentences | certified, of these wrong | ROUGE-L | "
        "guessing without the update | median s (longest) |",
        "|---|---|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for cell in cells:
        trials, own = cell["trials"], cell["settings"]
        total = {key: sum(t[key] for t in trials) for key in ("sentences", "whole", "certified", "certified_wrong")}
        whole = share_interval(total["whole"], total["sentences"])
        reached, guessed = (Interval(**cell[name]["rougeL"]) for name in ("summary", "control"))
        seconds = [trial["seconds"] for trial in trials]
        cut = sum(trial["status"] != "completed" for trial in trials)
        batches = f"{len(trials)}, {cut} cut by time" if cut else str(len(trials))
        lines.append(
            f"| {own['model']} | {cell['family']} | {Path(own['data']).stem} | {own['batch_size']} | {batches} | "
            f"{total['whole']} of {total['sentences']}: {format_interval(whole)} | "
            f"{total['certified']}, {total['certified_wrong']} | {format_interval(reached)} | "
            f"{format_interval(guessed)} | {statistics.median(seconds):.0f} ({max(seconds):.0f}) |"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog=f"python -m {BENCH}")
    parser.add_argument("--cola", type=Path, required=True, help="CoLA's table")
    parser.add_argument("--enron", type=Path, required=True, help="a sentence a line")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--sizes", nargs="+", type=int, default=list(SIZES))
    parser.add_argument("--trials", type=int, default=TRIALS)
    parser.add_argument("--page", type=Path, help="a page to put the table of the file into, once all is measured")
    given = parser.parse_args(arguments)
    kept = json.loads(given.out.read_text(encoding="utf-8")) if given.out.exists() else {"cells": []}
    cells = kept["cells"]
    for model in given.models:
        for size in given.sizes:
            settings = settings_of(model, getattr(given, MODELS[model]), size, given.trials)
            if any((cell["settings"]["model"], cell["settings"]["batch_size"]) == (model, size) for cell in cells):
                continue
            named = {**settings, "data": Path(settings["data"]).name}
            cells.append({"command": command(settings), "settings": named, **figures(audit(**settings))})
            cells.sort(
                key=lambda cell: (list(MODELS).index(cell["settings"]["model"]), cell["settings"]["batch_size"])
            )
            kept = {ABOUT: about("each its own", [given.cola, given.enron], before=kept), "cells": cells}
            write_text(given.out, json.dumps(kept, indent=1) + "\n")
            say(command(settings))
    say(*table(cells).split("\n"))
    if given.page is not None:
        fill_page(given.page, BENCH, table(cells))


if __name__ == "__main__":
    main()
