"""Audits of images in short, for the results book: python -m gradleak.bench.image_audits RUN ... --out FILE

Of every trial its scores beside the control's, and no picture; of every audit the command that repeats it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gradleak.attacks import attacks_for
from gradleak.audits.results import Results, Trial, load_results
from gradleak.bench.provenance import ABOUT, named
from gradleak.core.errors import GradleakError
from gradleak.core.files import write_text
from gradleak.core.output import say

METRICS = ("mse", "psnr")
DIGITS = 6


def cell(results: Results) -> dict[str, Any]:
    """What the book needs of one audit of images."""
    scenario, attack = results.scenario, results.attack
    if scenario.modality != "images" or not results.scored:
        raise GradleakError(f"{results!r} is no audit of images with a truth")
    usual = attacks_for("images").get(attack.name).Options().model_dump()
    options = {name: value for name, value in attack.options.items() if usual.get(name) != value}
    trials = [_trial(trial) for trial in results.trials]
    right = [trial["label_right"] for trial in trials]  # None where the attack does not say which label it read
    drawn = scenario.model.partition(":")[0] == "lenet"
    return {
        "model": scenario.model, "weights": "drawn" if drawn else "as loaded",
        "attack": attack.name, "client": str(scenario.client),
        "defenses": scenario.defenses, "options": options, "auxiliary": scenario.auxiliary,
        "command": _command(results, options), "status": results.status, "images": len(trials),
        **{metric: float(np.mean([trial[metric] for trial in trials])) for metric in METRICS},
        "control": {metric: float(np.mean([trial["control"][metric] for trial in trials])) for metric in METRICS},
        "certified": sum(trial["certified"] for trial in trials),
        "certified_wrong": sum(trial["certified"] and trial["psnr"] < 100 for trial in trials),
        "labels_right": None if None in right else sum(right), "trials": trials,
    }  # fmt: skip


def _trial(trial: Trial) -> dict[str, Any]:
    return {
        **{metric: round(trial.scores[metric], DIGITS) for metric in METRICS},
        "control": {metric: round(trial.control_scores[metric], DIGITS) for metric in METRICS},
        "certified": all(pair.certified for pair in trial.pairs),
        "label_right": trial.found["labels"] == 100.0 if "labels" in trial.found else None,
        "seconds": round(trial.seconds, 1),
    }


def _command(results: Results, options: dict[str, Any]) -> str:
    scenario = results.scenario
    words = ["gradleak audit", "--model", named(scenario.model), "--data", named(scenario.data)]
    words += ["--attack", results.attack.name, "--trials", str(scenario.trials)]
    # All but the options that are the attack's own.
    words += ["--seed", str(scenario.seed)] if scenario.seed else []
    words += [] if str(scenario.client) == "fedsgd" else ["--client", str(scenario.client)]
    words += [word for name, value in options.items() for word in ("-o", f"{name}={_as_given(value)}")]
    words += [word for defense in scenario.defenses for word in ("--defense", defense)]
    return " ".join(words)


def _as_given(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def kept(audits: Sequence[Results]) -> dict[str, Any]:
    """The whole file: every audit, and by which code, of which model and data, and by which commands."""
    cells = [cell(results) for results in audits]
    code = dict.fromkeys(_code(results) for results in audits)
    return {
        ABOUT: {
            "code": list(code),
            "model": ", ".join(dict.fromkeys(each["model"] for each in cells)),
            "data": ", ".join(dict.fromkeys(named(results.scenario.data) for results in audits)),
            "command": f"{cells[0]['command']}; the other cells have their own",
        },
        "cells": cells,
    }


def _code(results: Results) -> str:
    used = results.environment
    commit = f", commit {used.git_commit[:12]}{' (changed)' if used.git_dirty else ''}" if used.git_commit else ""
    return f"gradleak {used.gradleak}{commit}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m gradleak.bench.image_audits", description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, help="folders of audits")
    parser.add_argument("--out", type=Path, required=True, help="such as docs/measurements/images_lti.json")
    given = parser.parse_args(arguments)
    content = kept([load_results(folder) for folder in given.runs])
    write_text(given.out, json.dumps(content, indent=1) + "\n")
    say(f"{len(content['cells'])} audits in {given.out}")


if __name__ == "__main__":
    try:
        main()
    except GradleakError as error:
        sys.exit(str(error))
