"""When a kept result is still valid: the same rule for every experiment.

Maps, checkpoints, frontiers and utility once kept results by a version number that nobody raised, so they showed
those of older code as new; recipes did not notice an edited corpus. Here the code is an attack and a defence of the
user's own, which are edited between two runs.
"""

import json
import multiprocessing
import os
import sys
from collections import Counter
from pathlib import Path

import pytest
from tiny import tiny_model, tiny_tokenizer

from gradleak import (
    AuditSpec,
    FrontierSpec,
    RunOptions,
    SweepSpec,
    audit_checkpoints,
    frontier,
    leak_map,
    reproduce,
    sweep,
    utility,
)
from gradleak.attacks import control
from gradleak.core.identity import digest_code
from gradleak.experiments.recipes.recipe import Recipe

MINE = """
from gradleak import Attack, Defense, Reconstruction, Sentence

class Echo(Attack):
    summary = "always says the same"
    def run(self, updates, model, context):
        ids = model.tokenizer("the loan", add_special_tokens=False)["input_ids"]
        return [Reconstruction(sentences=[Sentence(text="the loan", tokens=ids, confidence=0.5)]) for _ in updates]

class Scaled(Defense):
    summary, reveals = "everything times a factor", "nothing"
    random, lossy = False, False
    def apply(self, tensors, model, generator):
        return {name: 2 * tensor for name, tensor in tensors.items()}
"""


def every_experiment(place: Path) -> None:
    """All of them in turn, as in an interpreter that was just started there."""
    os.chdir(place)
    sys.path.insert(0, "")
    control.load_prior = lambda *_: type("Prior", (), {"sample": lambda self, length, generator: [7] * length})()
    inline = RunOptions(executor="inline")
    spec = AuditSpec(model="model", data="rows.csv", attack="mine:Echo", trials=1)
    rounds = {"rounds": 1, "clients": 1, "batch_size": 2, "seeds": 1, "test_rows": 4}
    leak_map(spec, "map", options=inline)
    audit_checkpoints(spec.with_(model="trained"), "checkpoints", options=inline)
    costs = FrontierSpec(audit=spec, attacks=["mine:Echo"], defenses=["mine:Scaled"], utility=rounds)
    frontier(costs, "frontier", options=inline)
    utility("model", data="rows.csv", defenses=["mine:Scaled"], out="utility", options=inline, **rounds)
    sweep(SweepSpec(models=["model"], data=["rows.csv"], attacks=["mine:Echo"], trials=1), "sweep", options=inline)
    line = {"name": "one", "data": "cola", "attack": "mine:Echo"}
    recipe = Recipe.model_validate({"title": "t", "source": "s", "model": "model", "trials": 1, "cells": [line]})
    reproduce(recipe, "recipe", data_dir=".", options=inline)


CELLS = {"map": 16, "checkpoints": 2, "frontier": 2 + 3, "utility": 3, "sweep": 1, "recipe": 1}


def begun(place: Path) -> Counter:
    """How many cells of each experiment were begun since the last look; the logs are emptied."""
    counts: Counter = Counter()
    for log in place.glob("*/log.jsonl"):
        counts[log.parent.name] = sum(json.loads(line)["event"] == "begun" for line in log.read_text().splitlines())
        log.write_text("")
    return counts


def run_all(place: Path) -> Counter:
    """Every experiment in a fork of its own, which has not seen `mine.py` as it was before.

    The package's own source, which nobody edits meanwhile, is read before the first.
    """
    digest_code(frozenset({"gradleak.audits.run", "gradleak.audits.text", "gradleak.training.rounds"}))
    process = multiprocessing.get_context("fork").Process(target=every_experiment, args=(place,))
    process.start()
    process.join()
    assert process.exitcode == 0  # what it said is on stderr
    return begun(place)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kept")
    (folder / "mine.py").write_text(MINE)
    (folder / "rows.csv").write_text(
        "text,label\n" + "\n".join(f"Rosa moved to ward {i}.,{i % 2}" for i in range(20))
    )
    (folder / "cola_train.tsv").write_text("\n".join(f"x\t{i % 2}\t\tRosa moved to ward {i}." for i in range(12)))
    models = ((folder / "model", 0), (folder / "trained", 1), (folder / "trained" / "checkpoint-1", 2))
    for home, seed in models:
        tiny_model("bert", "classification", seed=seed).module.save_pretrained(home)
        tiny_tokenizer("bert").save_pretrained(home)
    (folder / "trained" / "metrics.json").write_text('{"step": 2}')
    return folder


def test_every_experiment_runs_anew_what_is_no_longer_valid_and_nothing_else(place):
    assert run_all(place) == CELLS
    # A comment changes nothing. The recipe's corpus was edited, by a letter.
    (place / "mine.py").write_text(MINE.replace("    def run", "    # a comment\n    def run"))
    corpus = place / "cola_train.tsv"
    corpus.write_text(corpus.read_text().replace("ward 3", "ward E"))
    assert run_all(place) == {**dict.fromkeys(CELLS, 0), "recipe": 1}

    # What the attack does changes whatever ran it.
    source = (place / "mine.py").read_text()
    (place / "mine.py").write_text(source.replace('text="the loan"', 'text="the ward"'))
    audits = {"map": 16, "checkpoints": 2, "frontier": 2 + 1, "utility": 1, "sweep": 1, "recipe": 1}
    assert run_all(place) == audits  # the defended trainings too: the defence stands in the same file

    # The tokenizer of a model, whose weights stay what they are.
    for home in ("model", "trained", "trained/checkpoint-1"):
        tokenizer = place / home / "tokenizer.json"
        values = json.loads(tokenizer.read_text())
        values["normalizer"]["strip_accents"] = not values["normalizer"].get("strip_accents")
        tokenizer.write_text(json.dumps(values))
    assert run_all(place) == CELLS
