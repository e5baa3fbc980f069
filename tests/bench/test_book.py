"""The results book says what the committed measurements say, and each of these says where it comes from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from gradleak.bench.book import curves
from gradleak.bench.book.__main__ import CLAIMS, book, kept_files
from gradleak.bench.book.lines import lines_of
from gradleak.bench.book.pages import PAGES, VERDICTS
from gradleak.bench.book.paired import differences
from gradleak.bench.provenance import about, missing

DOCS = Path(__file__).parents[2] / "docs"
FILES = kept_files(DOCS)


def test_pages_are_those_of_the_files():
    made = book(DOCS)
    assert {path.stem for path in (DOCS / "book").glob("*.md")} == set(made)
    for name, text in made.items():
        assert (DOCS / "book" / f"{name}.md").read_text(encoding="utf-8") == text, (
            f"docs/book/{name}.md is not what the files say: run python -m gradleak.bench.book"
        )


def test_the_figure_is_that_of_the_files():
    assert (DOCS / curves.FIGURE).read_text(encoding="utf-8") == curves.figure(FILES)


@pytest.mark.parametrize("name", FILES)
def test_every_file_names_code_model_data_and_command(name):
    assert not missing(FILES[name])
    assert "/work/" not in json.dumps(FILES[name])  # no paths of a machine


@pytest.mark.parametrize("name", FILES)
def test_every_file_is_on_a_page(name):
    lines = lines_of(name, FILES[name])
    assert lines
    assert {line.page for line in lines} <= PAGES.keys()


def test_a_line_of_batches():
    """By hand: 5 of 8 and 8 of 8 sentences, one of them proved wrongly."""
    first = {"seed": 1, "sentences": 8, "whole": 5, "certified": 5, "certified_wrong": 1, "seconds": 2.0}
    cells = [first, {**first, "seed": 2, "whole": 8, "certified": 8, "certified_wrong": 0, "seconds": 4.0}]
    settings = {"model": "minilm", "batch_size": 8, "client": "fedsgd"}
    named = about("minilm", Path("there/cola_train.tsv"), "python -m gradleak.bench.encoders --data cola_train.tsv")
    (line,) = lines_of("measurements/x.json", {"about": named, "settings": settings, "cells": cells})
    assert (line.page, line.values["corpus"], line.values["batches"]) == ("exact", "CoLA", "2")
    assert line.values["of"] == "13 of 16"
    assert line.values["certified, wrong"] == "13, 1"
    assert line.values["whole sentences, %"].startswith("81 [")
    assert line.values["seconds"] == "3 (4)"


def test_a_file_that_no_form_fits_is_an_error():
    with pytest.raises(ValueError, match="no form"):
        lines_of("x.json", {"about": {"command": "python x"}, "cells": [{"unheard": 1}]})


def _recipe_line(name, scores, **settings):
    return {"name": name, "settings": {"data": "cola", "batch_size": 1, "seed": 0, **settings}, "scores": scores}


def test_a_difference_is_taken_trial_by_trial():
    """By hand: 10, 20 and 30 apart have a standard error of 5.77, and Student's factor is 4.30."""
    cells = [
        _recipe_line("CoLA TAG", {"rouge2": [20, 50, 80, 5]}),
        _recipe_line("CoLA DLG", {"rouge2": [10, 30, 50]}),
        _recipe_line("SST-2 DLG", {"rouge2": [10, 30, 50]}, data="sst2"),
    ]
    files = {"results/table.json": {"about": {"model": "minilm"}, "cells": cells}}
    files["results/trained.json"] = {"about": {"model": "trained"}, "cells": cells[:1]}
    said = differences(files, {"rouge2": ["table: CoLA TAG", "table: CoLA DLG"]})
    assert said == "ROUGE-2 of CoLA TAG less CoLA DLG, paired: +20 [-5, +45] of 3"
    said = differences(files, {"rouge2": ["trained: CoLA TAG", "table: CoLA TAG"]})
    assert said.startswith("ROUGE-2 of CoLA TAG (trained) less CoLA TAG (minilm), paired: +0 ")
    said = differences(files, {"rouge2": ["table: CoLA TAG|CoLA DLG", "table: CoLA D*"]})
    assert said.startswith("ROUGE-2 of CoLA TAG and CoLA DLG less CoLA D*, paired: +10 ")
    with pytest.raises(ValueError, match="not pairs"):
        differences(files, {"rouge2": ["table: CoLA TAG", "table: SST-2 DLG"]})
    with pytest.raises(ValueError, match="no line"):
        differences(files, {"rouge2": ["table: CoLA TAG", "table: nothing"]})


def test_code_of_earlier_cells_is_kept():
    before = {"about": {"code": ["gradleak 0.0.9"]}}
    named = about("minilm", "built-in", "python x", before=before)
    assert named["code"][0] == "gradleak 0.0.9"
    assert len(named["code"]) == 2
    assert about("minilm", "built-in", "python x", before={"about": named})["code"] == named["code"]


def test_claims_are_complete():
    claims = yaml.safe_load((DOCS / CLAIMS).read_text(encoding="utf-8"))
    assert len({claim["paper"] for claim in claims}) == 4
    for claim in claims:
        assert claim.keys() >= {"paper", "claim", "theirs", "ours", "verdict", "where"}
        assert claim["verdict"] in VERDICTS
        assert claim["verdict"] != "open" or claim.get("why"), claim["claim"]
