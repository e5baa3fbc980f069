"""What comes back as a model trains on the private text (FILM's Figure 4): `python -m gradleak.bench.checkpoints`.

    gradleak finetune --task lm --data enron.txt --epochs 6 --lr 5e-5 --checkpoints 2 --out trained
    python -m gradleak.bench.checkpoints --model trained --data enron.txt --out docs/measurements/checkpoints.json

runs one audit on every model that the training kept, as `gradleak checkpoints` does, and keeps the figures.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gradleak.audits.spec import AuditSpec
from gradleak.bench.provenance import ABOUT, about
from gradleak.core.files import write_text
from gradleak.core.output import say
from gradleak.experiments.checkpoints.result import Checkpoint, headline
from gradleak.experiments.checkpoints.run import audit_checkpoints
from gradleak.experiments.experiment import RunOptions
from gradleak.scoring.interval import Interval

METRIC = "best_rougeL"


def figures(point: Checkpoint) -> dict[str, Any]:
    """What is kept of one step of the training."""
    named = {"leak": point.leak, "control": point.control, "change": point.change}
    return {"step": point.step, "learned": point.learned, **{name: _rounded(value) for name, value in named.items()}}


def _rounded(value: Interval | None) -> Mapping[str, float] | None:
    return None if value is None else {end: round(x, 2) for end, x in value.model_dump().items()}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m gradleak.bench.checkpoints")
    parser.add_argument("--model", type=Path, required=True, help="the folder of the training")
    parser.add_argument("--data", type=Path, required=True, help="a text a line")
    parser.add_argument("--runs", type=Path, default=Path("checkpoint-runs"), help="the folder of the audits")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--attack", default="film")
    parser.add_argument("--option", action="append", default=[], help="of the attack, such as score=film")
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    spec = AuditSpec(
        model=str(given.model),
        data=str(given.data),
        attack=given.attack,
        options=dict(option.split("=", 1) for option in given.option),
        **{name: getattr(given, name) for name in ("batch_size", "trials", "seed")},
    )
    result = audit_checkpoints(spec, given.runs, metric=METRIC, options=RunOptions(workers=1))
    settings = spec.model_dump(mode="json", include={"attack", "options", "batch_size", "trials", "seed", "known"})
    kept = {
        ABOUT: about(given.model.name, given.data),
        "settings": settings,
        "metric": METRIC,
        "cells": [figures(point) for point in result.measured],
    }
    write_text(given.out, json.dumps(kept, indent=1) + "\n")
    say(headline(result))


if __name__ == "__main__":
    main()
