"""The map from its command to its page."""

import json
import xml.etree.ElementTree as ElementTree

import pytest
from tiny import CASES, tiny_model, tiny_tokenizer

from gradleak import GradleakError, audit, leak_map
from gradleak.audits.spec import AuditSpec
from gradleak.cli import main
from gradleak.core.budget import Budget
from gradleak.experiments.experiment import RunOptions
from gradleak.experiments.map.claims import claims
from gradleak.experiments.map.grid import WHOLE, places_of
from gradleak.experiments.map.result import LeakMap, MapCell, headline
from gradleak.experiments.runner.cell import EndedCell
from gradleak.experiments.runner.store import Store
from gradleak.models.selection import selected
from gradleak.report.heatmap import map_figure
from gradleak.report.leakmap import render_map
from gradleak.scoring.interval import Interval

SPACE = "{http://www.w3.org/2000/svg}"
QUICK = ["--attack", "dlg", "-o", "steps=1", "--trials", "2", "--known", "batch_size,labels,lengths"]


INLINE = RunOptions(executor="inline")


def results_of(folder, cell):
    """The audit of a cell."""
    return Store(folder).read(cell, EndedCell).results


class NoPrior:
    """Guesses at once; counting n-grams takes longer than all the rest."""

    def sample(self, length, generator):
        return [7] * length


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("map")
    tiny_model("bert", "classification").module.save_pretrained(folder / "model")
    tiny_tokenizer("bert").save_pretrained(folder / "model")
    return folder


def run(monkeypatch, *words):
    monkeypatch.setattr("gradleak.attacks.control.load_prior", lambda *_: NoPrior())
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setattr("sys.argv", ["gradleak", "map", *map(str, words), "--executor", "inline"])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{case[1]}")
def test_every_family_has_its_cells(case):
    model = tiny_model(*case)
    places = places_of(model)
    assert len(places) == 2 + 2 * (1 + len(model.layer_roles))
    chosen = [tuple(selected(place.selection, model)) for place in places]
    assert len(set(chosen)) == len(chosen)
    single = [names for place, names in zip(places, chosen, strict=True) if place.column not in (None, WHOLE)]
    assert all(len(names) == 1 for names in single)


def test_from_the_command_to_the_page_and_again(place, monkeypatch, capsys):
    out = place / "out"
    assert run(monkeypatch, "--model", place / "model", *QUICK, "--out", out) == 0
    shown = " ".join(capsys.readouterr().out.split())
    numbers = json.loads((out / "map.json").read_text())
    assert numbers["status"] == "completed"
    assert numbers["columns"] == ["query", "key", "value", "attention out", "ffn in", "ffn out", "whole layer"]
    assert len(numbers["cells"]) == 2 + 2 * 7
    assert "all gradients (100 %)" in shown
    page = (out / "map.html").read_text()
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "")
    tree = ElementTree.parse(out / "map.svg").getroot()
    assert len([node for node in tree.iter(f"{SPACE}rect") if node.get("class") == "heat"]) == 2 + 2 * 7
    query = next(cell for cell in numbers["cells"] if cell["selection"] == "layer:2.query")
    kept = results_of(out, query["cell"])
    assert (kept.scenario.observed.selection, kept.scenario.observed.tensors) == ("layer:2.query", 1)
    assert kept.summary["rougeL"].mean == query["leak"]["mean"]
    stamps = {path: path.stat().st_mtime_ns for path in (out / "cells").rglob("*.json")}
    assert len(stamps) == 16
    assert run(monkeypatch, "--model", place / "model", *QUICK, "--out", out) == 0
    assert {path: path.stat().st_mtime_ns for path in (out / "cells").rglob("*.json")} == stamps
    assert json.loads((out / "map.json").read_text())["cells"] == numbers["cells"]


def test_cells_that_run_together_are_what_each_is_alone(place, monkeypatch, tmp_path):
    """The same guesses, losses and guessing; only the time they took may differ."""
    monkeypatch.setattr("gradleak.attacks.control.load_prior", lambda *_: NoPrior())
    options = {"steps": 4, "init_draws": 3, "prior": "none", "prior_weight": 0, "discrete_every": 2, "polish": 1}
    known = ("batch_size", "labels", "lengths")
    settings = {"attack": "lamp-cos", "options": options, "trials": 2, "known": known, "max_tokens": 14}
    result = leak_map(AuditSpec(model=str(place / "model"), **settings), tmp_path, options=INLINE)
    for cell in result.cells[::3]:  # all there is, a whole layer, and modules
        together = results_of(tmp_path, cell.cell)
        alone = audit(place / "model", observe=cell.selection, **settings)
        assert together.scenario == alone.scenario
        for one, other in zip(together.trials, alone.trials, strict=True):
            ours, theirs = one.reconstruction, other.reconstruction
            assert [s.tokens for s in ours.sentences] == [s.tokens for s in theirs.sentences], cell.selection
            assert ours.loss == pytest.approx(theirs.loss, rel=1e-4, abs=1e-6)  # one less a cosine, in fp32
            assert (one.scores, one.control_scores) == (other.scores, other.control_scores)


def test_masked_texts_are_never_written(place, monkeypatch, tmp_path):
    monkeypatch.setattr("gradleak.attacks.control.load_prior", lambda *_: NoPrior())
    config = AuditSpec(model=str(place / "model"), attack="bag", trials=1, redact=True)
    for cell in leak_map(config, tmp_path, options=INLINE).cells:
        kept = results_of(tmp_path, cell.cell)
        assert kept.redacted
        assert kept.trials[0].truth[0].startswith("w1 w2")


def test_a_spent_budget_leaves_cells_open(place, tmp_path):
    result = leak_map(AuditSpec(model=str(place / "model")), tmp_path, budget=Budget(seconds=0))
    assert result.status == "budget-exhausted"
    assert headline(result).startswith("No single module is measured yet")
    tree = ElementTree.fromstring(map_figure(result))
    assert len([node for node in tree.iter(f"{SPACE}rect") if node.get("class") == "open"]) == 2 + 2 * 7 + 1
    assert "dashed cells are open" in render_map(result)
    with pytest.raises(GradleakError, match="leave out observe"):
        leak_map(AuditSpec(model=str(place / "model"), observe="head"), tmp_path)


def test_the_headline_follows_the_intervals(place, tmp_path):
    result = leak_map(AuditSpec(model=str(place / "model")), tmp_path, budget=Budget(seconds=0))

    def scored(mean: float) -> LeakMap:
        low, high = Interval(mean=5, low=3, high=8), Interval(mean=mean, low=mean - 5, high=mean + 5)
        cells = [cell.model_copy(update={"leak": low, "control": low}) for cell in result.cells]
        cells[-1] = cells[-1].model_copy(update={"leak": high})
        return result.model_copy(update={"cells": cells})

    assert headline(scored(60)).startswith("One module can be enough: ffn out of layer 2")
    assert headline(scored(9)).startswith("No single module is clearly above guessing")


def test_what_a_model_is_called_cannot_harm_the_page(place, tmp_path):
    result = leak_map(AuditSpec(model=str(place / "model")), tmp_path, budget=Budget(seconds=0))
    hostile = result.model_copy(update={"spec": AuditSpec(model='<script>"&')})
    ElementTree.fromstring(map_figure(hostile))
    assert "<script>" not in render_map(hostile)


def test_the_paper_s_observations_are_decided_by_paired_differences(place, tmp_path):
    """Values made so that each claim is known: value below query and key, all layers far behind everything."""
    result = leak_map(AuditSpec(model=str(place / "model")), tmp_path, budget=Budget(seconds=0))
    assert claims(result) == []

    def scored(cell):
        level = {"all": 90.0, "transformer": 60.0}.get(cell.selection, 20.0 if cell.column == "value" else 50.0)
        return cell.model_copy(update={"values": [level, level + 10, level + 5], "guesses": [5.0, 4.0, 6.0]})

    full = result.model_copy(update={"cells": [scored(cell) for cell in result.cells], "layers": 2})
    found = {claim.statement: claim for claim in claims(full)}
    behind, leaks, less = found.values()  # two layers have no middle
    assert (behind.holds, behind.difference.mean) == ("does not hold", -30)
    assert (leaks.holds, leaks.difference.mean) == ("holds", 50)
    assert (less.statement, less.holds, less.difference.mean) == ("query and key leak more than value", "holds", 30)
    assert all(statement in render_map(full) for statement in found)


def test_a_middle_needs_three_layers_and_every_cell():
    model = tiny_model("bert", "classification", layers=3)
    places = places_of(model)
    columns = list(dict.fromkeys(place.column for place in places if place.column is not None))
    usual = {"parameters": 1, "share": 1.0, "leak": None, "control": None, "cell": ""}
    cells = [
        MapCell(**place.model_dump(), **usual, values=[40.0 + 10 * (place.layer == 2), 50.0], guesses=[1.0, 1.0])
        for place in places
    ]
    empty = LeakMap.model_construct(layers=3, columns=columns, cells=cells, metric="rougeL")
    (middle,) = [claim for claim in claims(empty) if claim.statement.startswith("middle")]
    assert middle.measured.startswith("layers 2 to 2 − the others")
    assert (middle.holds, middle.difference.mean) == ("open", 5)
    cells[-1] = cells[-1].model_copy(update={"values": []})
    assert not any(claim.statement.startswith("middle") for claim in claims(empty))
