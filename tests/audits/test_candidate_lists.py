"""An audit that asks a server with candidates: what it is given, what it is not told, and what is kept of it."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from sample import sample_results
from tiny import tiny_model
from typer.testing import CliRunner

from gradleak import Client, GradleakError, TextModel, audit
from gradleak.audits import membership
from gradleak.audits.membership import CandidateLists
from gradleak.audits.modality import completed
from gradleak.audits.redact import redact
from gradleak.audits.results import Results, load_results
from gradleak.audits.rows import pair_rows
from gradleak.audits.spec import AuditSpec
from gradleak.cli import app
from gradleak.data.texts import Row, read_data
from gradleak.experiments.runner.jobs import AuditJob
from gradleak.report.build import render
from gradleak.verdict.gather import Gathered

ROWS = read_data()
RULE = "fedavg:epochs=2,batch=2,lr=1e-3"


@pytest.fixture(scope="module")
def model() -> TextModel:
    return tiny_model("gpt2", "causal-lm")


@pytest.fixture(scope="module")
def results(model: TextModel) -> Results:
    return audit(
        model, data=ROWS, attack="dlg", options={"steps": 1}, trials=2, batch_size=3, candidates=60, client=RULE
    )


def test_true_sentences_are_confirmed(results: Results) -> None:
    confirmed = results.confirmed
    assert confirmed is not None
    assert (confirmed.trials, confirmed.members, confirmed.others, confirmed.public) == (2, 6, 120, ["same data"])
    assert confirmed.auc.mean > 0.95
    assert confirmed.at(0.01).mean > 50
    assert confirmed.at(0.001) is None
    for trial in results.trials:
        listed = trial.candidates.candidates
        assert sorted(each.text for each in listed if each.member) == sorted(trial.truth)
        assert len({each.text for each in listed}) == 63
        assert [each.member for each in listed] != sorted((each.member for each in listed), reverse=True)


def test_the_server_is_told_nothing_of_who_was_in(model: TextModel, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[dict[str, Any]] = []
    real = membership.contains

    def watched(update: Any, target: Any, texts: Any, **more: Any) -> Any:
        given.append({"texts": list(texts), **more})
        return real(update, target, texts, **more)

    monkeypatch.setattr(membership, "contains", watched)
    found = audit(model, data=ROWS, attack="bag", trials=2, batch_size=2, candidates=30)
    for trial, each in zip(found.trials, given, strict=True):
        assert set(each) == {"texts", "public", "references", "seed", "budget", "progress"}
        assert set(trial.truth) <= set(each["texts"])
        assert not set(each["texts"]) & set(each["public"])
        assert all(text in {row.text for row in ROWS} for text in each["public"])
    places = [
        each["texts"].index(text) for trial, each in zip(found.trials, given, strict=True) for text in trial.truth
    ]
    assert places != [0, 1, 0, 1]


def test_the_order_of_the_list_changes_nothing(model: TextModel) -> None:
    truth, others = [row.text for row in ROWS[:3]], [row.text for row in ROWS[3:43]]
    update = Client(model, client=RULE).update(truth)
    public = [row.text for row in ROWS[43:]]
    scores = []
    for seed in (0, 1):
        texts = random.Random(seed).sample(truth + others, 43)
        found = membership.contains(update, model, texts, public=public, references=100, seed=3)
        scores.append({each.text: each.score for each in found.candidates})
    assert all(scores[0][text] == pytest.approx(scores[1][text], abs=0.02) for text in scores[0])


def test_what_is_drawn(model: TextModel) -> None:
    rows = [*ROWS, Row(ROWS[0].text), Row("word " * 500)]
    lists = CandidateLists(AuditSpec(candidates=50, max_tokens=40), rows, model)
    others, public = lists.draw([ROWS[0].text], 7)
    assert lists.draw([ROWS[0].text], 7) == (others, public)
    assert lists.draw([ROWS[0].text], 8)[0] != others
    assert len(others) == 50
    assert public is not None
    assert len({*others, *public, ROWS[0].text}) == len(others) + len(public) + 1
    assert all(len(model.tokenizer(text)["input_ids"]) <= 40 for text in (*others, *public))
    few, none = CandidateLists(AuditSpec(candidates=500), rows, model).draw([ROWS[0].text], 7)
    assert len(few) == 215
    assert none is None


def test_too_few_rows_and_too_little_time_are_said(model: TextModel) -> None:
    late = audit(
        model, data=ROWS, attack="dlg", options={"steps": 10**6}, trials=2, batch_size=2, candidates=60, budget=0.3
    )
    assert late.confirmed.without >= 1
    assert any("time" in note for note in late.confirmed.notes)
    assert audit(model, data=ROWS[:8], attack="bag", trials=1).confirmed is None


def test_an_update_without_matrices_is_said_and_the_audit_goes_on(model: TextModel) -> None:
    found = audit(model, data=ROWS, attack="bag", trials=1, observe="head", candidates=20)
    assert found.status == "completed"
    assert "no matrix" in found.confirmed.notes[0]


def test_images_have_no_candidates() -> None:
    with pytest.raises(GradleakError, match="'candidates' means nothing for images"):
        completed(AuditSpec(model="lenet", data="x.npz", candidates=5), "images")


def test_old_results_load_and_new_ones_come_back(results: Results, tmp_path: Path) -> None:
    results.save(tmp_path)
    assert load_results(tmp_path) == results
    old = json.loads(sample_results().model_dump_json())
    del old["confirmed"]
    for trial in old["trials"]:
        del trial["candidates"]
    read = Results.model_validate({**old, "schema_version": 1})
    assert read.confirmed is None
    assert read.schema_version == 1


def test_redaction_masks_candidates(results: Results) -> None:
    hidden = redact(results)
    texts = [each.text for trial in results.trials for each in trial.candidates.candidates]
    written = hidden.model_dump_json()
    assert not [text for text in texts if text in written]
    assert hidden.confirmed == results.confirmed
    page = render(Gathered(Path("nowhere"), [hidden]))
    assert not [text for text in texts if text in page]


def test_the_page_and_the_lines_have_them(results: Results) -> None:
    page = render(Gathered(Path("nowhere"), [results]))
    assert 'id="candidates"' in page
    assert "a server that has a list of candidates confirms" in page
    lines = pair_rows(results)
    assert all(line["candidate_score"] is not None and 0 < line["false_alarm_rate"] <= 1 for line in lines)
    assert "candidate_score" not in pair_rows(sample_results())[0]


def test_kept_results_stay_valid_where_nobody_asks() -> None:
    plain, asking = AuditJob(spec=AuditSpec(attack="bag")), AuditJob(spec=AuditSpec(attack="bag", candidates=9))
    assert "candidates" not in plain.decisive("text")
    assert asking.decisive("text")["candidates"] == 9


def test_the_option() -> None:
    shown = CliRunner().invoke(app, ["audit", "--help"], env={"COLUMNS": "200"})
    assert "--candidates" in shown.output
