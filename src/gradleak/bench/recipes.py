"""A recipe to its end, in short: `python -m gradleak.bench.recipes NAME --data-dir DIR --runs FOLDER --out FILE`.

It runs what of the recipe is not finished in the folder, as `gradleak reproduce` does, and keeps the figures of every
finished line in one file for the results book: means with intervals beside the control's and the paper's, no texts.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gradleak.audits.results import Results
from gradleak.bench.provenance import ABOUT
from gradleak.core.environment import Environment
from gradleak.core.files import write_text
from gradleak.core.output import say
from gradleak.experiments.experiment import RunOptions
from gradleak.experiments.recipes.recipe import RecipeLine, load_recipe
from gradleak.experiments.recipes.run import Reproduced, reproduce
from gradleak.experiments.utility import UtilityResults
from gradleak.scoring.interval import Interval

DIGITS = 4
_LINE_END = re.compile(r",\n\s+")


def compact(name: str, result: Reproduced, only: str | None, **changes: Any) -> dict[str, Any]:
    """Every finished line, and by which code, of which model and data, and by which command.

    `changes` are settings that were not the recipe's own.
    """
    used = dict.fromkeys(_code(results.environment) for _, results in result.lines)
    words = ["gradleak reproduce", name, "--data-dir DIR", *([] if only is None else [f"--only {only!r}"])]
    words += [f"--{setting} {value}" for setting, value in changes.items()]
    return {
        ABOUT: {
            "code": list(used),
            "model": result.model,
            "data": ", ".join(dict.fromkeys(line.data for line, _ in result.lines)),
            "command": " ".join(words),
        },
        "recipe": name,
        "title": f"{result.recipe.title}: {result.recipe.source}",
        "metrics": list(result.recipe.metrics),
        "cells": [_cell(line, results, result.recipe.metrics) for line, results in result.lines],
        **({} if result.utility is None else {"utility": _learned(result.utility)}),
    }


def as_text(kept: Any) -> str:
    """JSON to read and to compare: a line for every value, but lists of numbers or names on one.

    >>> print(as_text({"scores": (1.5, 2.0), "cells": [{"name": "a"}]}), end="")
    {
     "scores": [1.5, 2.0],
     "cells": [
      {
       "name": "a"
      }
     ]
    }
    """
    plain = json.dumps(kept, indent=1, ensure_ascii=False)
    # Within a value the end of a line is written as two characters, so what follows one is always the next value.
    listed = re.sub(r"\[\n\s+([^][{}]+?)\n\s+\]", lambda found: f"[{_LINE_END.sub(', ', found[1])}]", plain)
    assert json.loads(listed) == json.loads(plain)
    return listed + "\n"


def _code(used: Environment) -> str:
    commit = f", commit {used.git_commit[:12]}{' (changed)' if used.git_dirty else ''}" if used.git_commit else ""
    return f"gradleak {used.gradleak}{commit}"


def _cell(line: RecipeLine, results: Results, metrics: Sequence[str]) -> dict[str, Any]:
    pairs = [pair for trial in results.trials for pair in trial.pairs]
    whole = [pair for pair in pairs if pair.scores.get("exact_match") == 100]
    proved = [pair for pair in pairs if pair.certified]
    settings = line.model_dump(mode="json", include={"data", "attack", "batch_size", "observe", "options"})
    return {
        "name": line.name,
        "settings": {
            **settings,
            "client": str(results.scenario.client),
            "defenses": results.scenario.defenses,
            "known": results.scenario.known,
            "seed": results.scenario.seed,
        },
        "status": results.status,
        "trials": len(results.trials),
        "summary": _rounded({name: results.summary[name] for name in metrics if name in results.summary}),
        "control": _rounded({name: results.control[name] for name in metrics if name in results.control}),
        "found": _rounded(results.found),
        "sentences": len(pairs),
        "whole": len(whole),
        "certified": len(proved),
        "certified_wrong": len(proved) - sum(pair.certified for pair in whole),
        # Lines of one corpus and batch size face the same batches, so they can be compared trial by trial.
        "scores": {
            name: [round(trial.scores[name], 2) for trial in results.trials] for name in _in_all(results, metrics)
        },
        "seconds": round(statistics.mean(trial.seconds for trial in results.trials), 1),
        "paper": line.paper,
    }


def _in_all(results: Results, metrics: Sequence[str]) -> list[str]:
    return [name for name in metrics if all(name in trial.scores for trial in results.trials)]


def _rounded(means: Mapping[str, Interval]) -> dict[str, Any]:
    return {
        metric: {end: round(value, DIGITS) for end, value in interval.model_dump().items()}
        for metric, interval in means.items()
    }


def _learned(utility: UtilityResults) -> list[dict[str, Any]]:
    return [
        {"setting": each.setting, "seeds": len(each.by_seed), "metrics": _rounded(each.metrics)}
        for each in utility.settings
        if each.metrics
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m gradleak.bench.recipes")
    parser.add_argument("recipe", help="such as partial-figure4")
    parser.add_argument("--data-dir", type=Path, required=True, help="the folder with the corpora")
    parser.add_argument("--runs", type=Path, required=True, help="the folder of the recipe's cells")
    parser.add_argument("--out", type=Path, required=True, help="such as docs/results/partial-figure4.json")
    parser.add_argument("--only", help="lines whose name matches; also leaves out what the model learns")
    parser.add_argument("--model", help="another model than the recipe's")
    parser.add_argument("--trials", type=int, help="fewer or more than the recipe's")
    parser.add_argument("--workers", type=int)
    given = parser.parse_args(arguments)
    options = RunOptions(workers=given.workers)
    recipe = load_recipe(given.recipe)
    changes = {name: value for name in ("model", "trials") if (value := getattr(given, name)) is not None}
    result = reproduce(recipe, given.runs, data_dir=given.data_dir, only=given.only, options=options, **changes)
    kept = compact(given.recipe, result, given.only, **changes)
    write_text(given.out, as_text(kept))
    say(f"{len(kept['cells'])} finished lines in {given.out}")


if __name__ == "__main__":
    main()
