"""The commands on finished results, as a user calls them."""

import csv
import json
import sys

import pytest
from invented import audit

from gradleak.cli import main

LOW = [5, 6, 4, 5, 6, 5, 4, 6, 5, 5]


@pytest.fixture
def call(monkeypatch, capsys):
    def run(*words):
        monkeypatch.setattr(sys, "argv", ["gradleak", *map(str, words)])
        monkeypatch.setenv("COLUMNS", "160")
        with pytest.raises(SystemExit) as stopped:
            main()
        said = capsys.readouterr()
        return stopped.value.code or 0, said.out, said.err

    return run


@pytest.fixture
def folder(tmp_path):
    for name, results in {
        "plain": audit([100, 90, 95]),
        "sign": audit(LOW, scenario={"defenses": ["sign"]}),
    }.items():
        place = tmp_path / "run" / "cells" / name
        place.mkdir(parents=True)
        results.save(place)
    return tmp_path / "run"


def test_verdict(call, folder):
    code, out, _ = call("verdict", folder)
    assert code == 0
    assert "Critical: auto read back 1 of 3 sentences whole" in out
    assert "No leak shown by auto (10 trials)" in out
    assert (folder / "verdict.json").is_file()


def test_report_of_one_and_of_many(call, folder):
    assert call("report", folder)[0] == 0
    page = (folder / "report.html").read_text()
    assert "2 scenarios: 1 critical, 1 not shown" in page
    assert call("report", folder / "cells" / "plain")[0] == 0
    assert "No leak shown" not in (folder / "cells" / "plain" / "report.html").read_text()


def test_report_masked(call, folder):
    call("report", folder, "--redact")
    page = (folder / "report.html").read_text()
    assert "Rosa" not in page
    assert "Texts are masked" in page
    assert "2 of 3 names" in page or "3 of 3 names" in page  # counted before the words were masked


def test_export(call, folder, tmp_path):
    assert call("export", folder, "--out", tmp_path / "all.csv")[0] == 0
    rows = list(csv.DictReader((tmp_path / "all.csv").open(newline="")))
    assert len(rows) == 13
    assert list(rows[0]) == [
        "scenario", "defense", "attack", "seed", "trial", "status", "truth", "recovered", "rouge1", "rouge2",
        "rougeL", "token_accuracy", "exact_match", "nerr", "confidence", "certified", "lost", "stage", "names_found",
        "names", "numbers_found", "numbers", "seconds",
    ]  # fmt: skip
    assert call("export", folder, "--out", tmp_path / "all.json")[0] == 0
    assert [row["truth"] for row in json.loads((tmp_path / "all.json").read_text())] == [row["truth"] for row in rows]
    assert (tmp_path / "all.json").stat().st_mode & 0o777 == 0o600


def test_compare(call, folder, tmp_path):
    code, out, _ = call("compare", folder / "cells" / "plain", folder / "cells" / "sign", "--out", tmp_path / "c")
    assert code == 0
    assert "reads less" in out
    assert "defenses was [], is ['sign']" in out
    assert (tmp_path / "c" / "compare.html").is_file()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["verdict", "nowhere"], "there is no folder nowhere"),
        (["verdict", "."], "holds no results.json"),
        (["annex", "a.csv"], "a.csv is a file; give the folder"),
        (["export", "FOLDER", "--out", "all.txt"], "ends in .csv or .json"),
        (["export", "FOLDER", "--out", "no/such/all.csv"], "cannot write"),
        (["compare", "FOLDER", "nowhere"], "there is no folder nowhere"),
    ],
)
def test_bad_input_is_one_line(call, folder, tmp_path, monkeypatch, words, message):
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "a.csv").write_text("text\n")
    monkeypatch.chdir(tmp_path / "empty")
    code, _, said = call(*(folder if word == "FOLDER" else word for word in words))
    assert code == 2
    assert message in said
    assert len(said.strip().splitlines()) == 1
