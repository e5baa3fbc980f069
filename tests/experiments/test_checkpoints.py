"""Audits of a training at several of its steps, from the commands to the page."""

import json
import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample import sample_results
from tiny import tiny_model, tiny_tokenizer

from gradleak import GradleakError, audit_checkpoints
from gradleak.audits.spec import AuditSpec
from gradleak.cli import main
from gradleak.core.budget import Budget
from gradleak.experiments.checkpoints.result import Checkpoint, Checkpoints, headline
from gradleak.experiments.checkpoints.table import checkpoint_table
from gradleak.experiments.experiment import RunOptions
from gradleak.experiments.runner.cell import EndedCell
from gradleak.experiments.runner.store import Store
from gradleak.report.checkpoints import render_checkpoints
from gradleak.report.timeline import timeline_figure
from gradleak.scoring.interval import Interval

ENVIRONMENT = sample_results().environment
SPACE = "{http://www.w3.org/2000/svg}"
QUICK = ["--attack", "dlg", "-o", "steps=1", "--trials", "3", "--batch-size", "2", "--known", "batch_size,lengths"]


class NoPrior:
    """Guesses at once; counting n-grams takes longer than all the rest."""

    def sample(self, length, generator):
        return [7] * length


def run(monkeypatch, *words):
    monkeypatch.setattr("gradleak.attacks.control.load_prior", lambda *_: NoPrior())
    monkeypatch.setenv("COLUMNS", "160")
    inline = ["--executor", "inline"] if words[0] == "checkpoints" else []
    monkeypatch.setattr("sys.argv", ["gradleak", *map(str, words), *inline])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A language model fine-tuned by the command, two checkpoints kept."""
    folder = tmp_path_factory.mktemp("checkpoints")
    tiny_model("gpt2", "causal-lm").module.save_pretrained(folder / "model")
    tiny_tokenizer("gpt2").save_pretrained(folder / "model")
    words = ["--model", folder / "model", "--task", "lm", "--data", "builtin", "--epochs", "1", "--lr", "0.003"]
    with pytest.MonkeyPatch.context() as patch:
        assert run(patch, "finetune", *words, "--checkpoints", "2", "--out", folder / "trained") == 0
    return folder


def test_finetuning_a_language_model_by_its_command(place):
    metrics = json.loads((place / "trained" / "metrics.json").read_text())
    assert (metrics["batch_size"], metrics["lr"]) == (16, 0.003)
    start = json.loads((place / "trained" / "checkpoint-0" / "metrics.json").read_text())
    assert metrics["perplexity"] < start["perplexity"]


def test_from_the_command_to_the_page_and_again(place, monkeypatch, capsys):
    out, words = place / "out", ["checkpoints", "--model", place / "trained", *QUICK]
    assert run(monkeypatch, *words, "--out", out) == 0
    shown = " ".join(capsys.readouterr().out.split())
    numbers = json.loads((out / "checkpoints.json").read_text())
    last = json.loads((place / "trained" / "metrics.json").read_text())["step"]
    assert [point["step"] for point in numbers["points"]] == [0, last // 2, last]
    assert numbers["status"] == "completed"
    assert len({point["model_fingerprint"] for point in numbers["points"]}) == 3
    assert "Best ROUGE-L" in shown
    assert "perplexity" in shown
    page = (out / "checkpoints.html").read_text()
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "")
    tree = ElementTree.parse(out / "checkpoints.svg").getroot()
    assert len(list(tree.iter(f"{SPACE}circle"))) == 2 * 3
    kept = [Store(out).read(point["cell"], EndedCell).results for point in numbers["points"]]
    assert len({tuple(map(tuple, (trial.truth for trial in one.trials))) for one in kept}) == 1
    first, second = ([trial.scores["best_rougeL"] for trial in one.trials] for one in kept[:2])
    differences = [after - before for before, after in zip(first, second, strict=True)]
    assert numbers["points"][0]["change"] is None
    assert numbers["points"][1]["change"]["mean"] == pytest.approx(sum(differences) / 3)

    stamps = {path: path.stat().st_mtime_ns for path in (out / "cells").rglob("*.json")}
    assert len(stamps) == 3
    assert run(monkeypatch, *words, "--metric", "rouge1", "--out", out) == 0  # another metric needs no new audit
    assert {path: path.stat().st_mtime_ns for path in (out / "cells").rglob("*.json")} == stamps
    drawn = json.loads((out / "checkpoints.json").read_text())["points"][0]["leak"]["mean"]
    assert drawn == kept[0].summary["rouge1"].mean


def test_masked_texts_are_never_written(place, monkeypatch, tmp_path):
    monkeypatch.setattr("gradleak.attacks.control.load_prior", lambda *_: NoPrior())
    config = AuditSpec(model=str(place / "trained"), attack="bag", trials=2, redact=True)
    for point in audit_checkpoints(config, tmp_path, options=RunOptions(executor="inline")).points:
        assert Store(tmp_path).read(point.cell, EndedCell).results.redacted


def test_a_spent_budget_leaves_checkpoints_open(place, tmp_path):
    config = AuditSpec(model=str(place / "trained"))
    result = audit_checkpoints(config, tmp_path, budget=Budget(seconds=0))
    assert result.status == "budget-exhausted"
    assert headline(result).startswith("Fewer than two checkpoints are measured")
    assert not list(ElementTree.fromstring(timeline_figure(result)).iter(f"{SPACE}circle"))
    assert "Not all is measured yet" in render_checkpoints(result)


def test_what_cannot_be_audited_is_refused(place, tmp_path):
    with pytest.raises(GradleakError, match="fewer than two"):
        audit_checkpoints(AuditSpec(model=str(place / "model")), tmp_path)
    with pytest.raises(GradleakError, match="unknown metric 'rougel'"):
        audit_checkpoints(AuditSpec(model=str(place / "trained")), tmp_path, metric="rougel")


def made(*changes, model="trained"):
    """Checkpoints a hundred steps apart whose changes are given."""
    points = [
        Checkpoint(
            step=100 * number, model="m", model_fingerprint="f", learned={}, cell="c",
            leak=Interval(mean=20, low=10, high=90), control=Interval(mean=5, low=4, high=6), change=change,
        )
        for number, change in enumerate([None, *changes])
    ]  # fmt: skip
    return Checkpoints(
        created="now", status="completed", environment=ENVIRONMENT, spec=AuditSpec(model=model),
        metric="best_rougeL", points=points,
    )  # fmt: skip


@given(st.lists(st.floats(-100, 100), min_size=3, max_size=3).map(sorted))
def test_the_headline_follows_the_paired_change(bounds):
    text = headline(made(Interval(mean=bounds[1], low=bounds[0], high=bounds[2])))
    assert ("the more" in text) == (bounds[0] > 0)
    assert ("the less" in text) == (bounds[2] < 0)
    assert ("No clear change" in text) == (bounds[0] <= 0 <= bounds[2])


def test_later_steps_stand_further_right_and_lines_match_headings():
    result = made(*[Interval(mean=1, low=0, high=2)] * 3)
    tree = ElementTree.fromstring(timeline_figure(result))
    (attack,) = [node for node in tree.iter(f"{SPACE}g") if node.get("class") == "attack"]
    places = [float(node.get("cx")) for node in attack.iter(f"{SPACE}circle")]
    assert places == sorted(places)
    assert len(set(places)) == 4
    headings, lines = checkpoint_table(result)
    assert all(len(line) == len(headings) for line in lines)


def test_what_a_model_is_called_cannot_harm_the_page():
    assert "<script>" not in render_checkpoints(made(Interval(mean=1, low=0, high=2), model='<script>"&'))
