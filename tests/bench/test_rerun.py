"""Batches that are drawn and attacked again: which, by which command, and when they count as the same."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from docs_pages import DOCS

from gradleak.bench.rerun import Batch, batches, lines, outcome

COMMAND = "python -m gradleak.bench.lora --data enron.json --attack soft --batch-size 4 --batches 9 --out a.json"
KEPT = {"seed": 7, "sentences": 2, "whole": 2, "tokens": 9, "seconds": 3.0}


def test_the_pages_have_batches_to_draw_from():
    found = list(batches(DOCS / "measurements"))
    assert len(found) > 100
    assert {"adamw_b1", "encoders_cola_b4", "lora_soft_b1"} <= {each.file for each in found}
    assert all({"seed", "seconds"} <= set(each.kept) for each in found)


def test_the_command_is_that_of_the_file_for_one_batch(tmp_path: Path):
    (tmp_path / "enron.json").write_text("[]")
    words = Batch("a", COMMAND, False, KEPT).again(tmp_path, tmp_path / "out.json")
    assert words[0] == sys.executable
    assert str(tmp_path / "enron.json") in words
    assert words[-6:] == ["--first-seed", "7", "--batches", "1", "--out", str(tmp_path / "out.json")]


@pytest.mark.parametrize(
    ("file", "noted", "seconds", "why"),
    [
        ("a", False, 3.0, None),
        ("a", True, 3.0, "changed since"),
        ("a_before", False, 3.0, "changed since"),
        ("a", False, 601.0, "601 s"),
    ],
)
def test_what_is_passed_over_is_told(file, noted, seconds, why):
    said = Batch(file, COMMAND, noted, {**KEPT, "seconds": seconds}).passed_over(600)
    assert (said is None) == (why is None)
    assert why is None or why in said


def test_only_what_came_back_whole_is_known_to_be_the_same_tokens():
    whole, part = (Batch("a", COMMAND, False, {**KEPT, "whole": count}) for count in (2, 1))
    assert outcome(whole, {**KEPT, "seconds": 99.0}) == "the same tokens"
    assert "counts and scores" in outcome(part, {**KEPT, "whole": 1})
    assert outcome(whole, {**KEPT, "whole": 1}) == "differs (whole: 2 and 1)"
    assert outcome(Batch("a", COMMAND, False, {**KEPT, "control": 5}), {**KEPT, "control": 6}) == (
        "the same tokens; its control is another"
    )
    bag = {**KEPT, "whole": 0, "tokens_found": 9, "tokens_wrong": 0}  # tokens by name, and no sentence looked for
    assert outcome(Batch("a", COMMAND, False, bag), bag) == "the same tokens"


def test_files_of_other_kinds_are_left_out(tmp_path: Path):
    (tmp_path / "other.json").write_text(json.dumps({"about": {"command": "gradleak audit"}, "cells": [KEPT]}))
    (tmp_path / "list.json").write_text("[]")
    assert list(batches(tmp_path)) == []


def test_lines_of_tables_are_run_by_their_recipe(tmp_path: Path):
    found = {each.label: each for each in lines(DOCS / "results")}
    line = found["dager-table2, CoLA B=1"]
    words = line.again(tmp_path, tmp_path / "out.json")
    assert words[2:4] == ["gradleak.bench.recipes", "dager-table2"]
    assert words[-4:] == ["--only", "^CoLA\\ B=1$", "--trials", "100"]
    assert line.passed_over(600) is None
    assert "took" in (found["lamp-table1, CoLA TAG"].passed_over(600) or "")
    assert outcome(line, line.kept) == "the same tokens"
