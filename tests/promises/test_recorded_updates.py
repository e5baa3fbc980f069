"""An update of someone's own training gets a verdict and a page like an audit's, with a truth and without one."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny import TEXTS, tiny_model

from gradleak import GradleakError
from gradleak.attacks.run import run_attack
from gradleak.audits.files import attack_update, score_files
from gradleak.audits.results import load_results
from gradleak.audits.spec import AuditSpec
from gradleak.audits.truth import read_truth
from gradleak.cli import app
from gradleak.core.budget import Budget
from gradleak.models.load import save_model

LABELS = [0, 1, 1]
QUICK = ("--attack", "tag", "-o", "steps=2")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, one step of plain training on private texts, the update that it makes, and truths in several forms."""
    folder = tmp_path_factory.mktemp("recorded")
    model = tiny_model("bert", "classification", layers=4, width=128)
    save_model(model.module, model.tokenizer, folder / "model")
    module, tokenizer = model.module.eval(), model.tokenizer
    inputs = tokenizer(TEXTS, return_tensors="pt", padding=True)
    module.zero_grad()
    loss = torch.nn.functional.cross_entropy(module(**inputs).logits, torch.tensor(LABELS))
    loss.backward()
    torch.save({name: p.grad for name, p in module.named_parameters() if p.grad is not None}, folder / "gradient.pt")
    module.zero_grad()
    files = ("--model", folder / "model", "--gradient", folder / "gradient.pt")
    run("convert", *files, "--batch-size", 3, "--out", folder / "update")
    (folder / "truth.json").write_text(json.dumps({"texts": TEXTS, "labels": LABELS}))
    (folder / "plain.txt").write_text("\n".join(TEXTS))
    (folder / "table.csv").write_text(
        "\n".join(["text,label", *(f"{t},{label}" for t, label in zip(TEXTS, LABELS, strict=True))])
    )
    return folder


def run(*words: Any) -> None:
    app([str(word) for word in words], standalone_mode=False)


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def call(*words: Any) -> str:
        run(*words)
        return " ".join(capsys.readouterr().out.split())

    return call


def test_without_a_truth(place: Path, tmp_path: Path, said: Callable[..., str]) -> None:
    out = tmp_path / "auto"
    told = said("attack", place / "update", "--model", place / "model", "--out", out)
    assert "Critical: auto gave back 3 sentences that the update itself proves" in told
    assert "rosa moved to ward six." in told
    results = load_results(out)
    assert not results.scored
    assert (results.summary, results.control, results.trials[0].truth) == ({}, {}, [])
    assert {path.name for path in out.iterdir()} == {"results.json", "verdict.json", "report.html"}
    guessed = said("attack", place / "update", "--model", place / "model", *QUICK, "--out", tmp_path / "tag")
    assert "Unclear: tag gave back" in guessed
    assert "only the truth can tell" in guessed
    for folder in (out, tmp_path / "tag"):
        assert "ROUGE" not in said("verdict", folder)  # no score is invented
        said("report", folder)
    page = (out / "report.html").read_text()
    assert "There is no truth to compare with" in page
    assert "rosa moved to ward six." in page
    compared = said("compare", out, tmp_path / "tag", "--out", tmp_path / "compare")
    assert "3 sentences that the update itself proves" in compared
    assert "Without a truth" in (tmp_path / "compare" / "compare.html").read_text()
    said("export", out, "--out", tmp_path / "lines.csv")
    rows = list(csv.DictReader((tmp_path / "lines.csv").open(encoding="utf-8")))
    assert {row["recovered"] for row in rows} == {text.lower() for text in TEXTS}
    assert {(row["truth"], row["certified"], row["rougeL"]) for row in rows} == {("", "True", "")}


@pytest.mark.parametrize("truth", ["truth.json", "plain.txt", "table.csv"])
def test_with_a_truth_it_is_scored_as_an_audit(
    place: Path, tmp_path: Path, said: Callable[..., str], truth: str
) -> None:
    out = tmp_path / "tag"
    command = ("attack", place / "update", "--model", place / "model", "--truth", place / truth)
    told = said(*command, *QUICK, "--out", out)
    assert "guessing without the update" in told
    results = load_results(out)
    (trial,) = results.trials
    assert trial.truth == TEXTS
    assert set(trial.scores) == set(trial.control_scores) == set(results.summary)
    assert results.scenario.batch_size == 3
    assert trial.labels == (None if truth == "plain.txt" else LABELS)
    assert (trial.truth_distance is None) == (truth == "plain.txt")  # without classes there is no true gradient
    said("verdict", out)
    said("report", out)
    said("export", out, "--out", tmp_path / "lines.json")
    assert [row["truth"] for row in json.loads((tmp_path / "lines.json").read_text())] == TEXTS
    assert "ROUGE-L" in said("compare", out, out)
    assert "ROUGE-2" in said("score", out, place / truth, "--model", place / "model")


def test_scores_come_later_too(place: Path, tmp_path: Path) -> None:
    """`score` takes the folder of an attack that knew no truth, and its model from there."""
    spec = AuditSpec(model=str(place / "model"))
    results, problem = attack_update(place / "update", spec, None, Budget())
    results.save(tmp_path)
    assert problem is None
    assert score_files(tmp_path, place / "truth.json", AuditSpec()).metrics["exact_match"] == 100


def test_the_tokens_are_told_in_a_table(place: Path, tmp_path: Path, said: Callable[..., str]) -> None:
    told = said("attack", place / "update", "--model", place / "model", "--attack", "bag", "--out", tmp_path / "bag")
    assert "tokens named, best first" in told
    assert "friday" in told
    assert "tokens by name" in told


def test_redacted(place: Path, tmp_path: Path, said: Callable[..., str]) -> None:
    for number, more in enumerate(((), ("--truth", place / "truth.json"), ("--attack", "bag"))):
        out = tmp_path / str(number)
        told = said("attack", place / "update", "--model", place / "model", "--redact", *more, "--out", out)
        written = [told, *(path.read_text() for path in out.iterdir())]
        assert not any(word in text.lower() for text in written for word in ("rosa", "refused", "friday"))
        assert load_results(out).trials[0].bag_size > 10


def test_the_attack_ends_before_the_truth_is_read(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is at the place of the truth while the attack runs does not matter."""
    truth = tmp_path / "truth.json"
    truth.write_text("not yet")

    def late(*given: Any) -> Any:
        answers = run_attack(*given)
        truth.write_text(json.dumps({"texts": TEXTS}))
        return answers

    monkeypatch.setattr("gradleak.audits.files.run_attack", late)
    spec = AuditSpec(model=str(place / "model"), attack="tag", options={"steps": 1})
    results, problem = attack_update(place / "update", spec, truth, Budget())
    assert problem is None
    assert results.trials[0].truth == TEXTS


def test_another_number_of_examples_is_scored(place: Path, tmp_path: Path) -> None:
    (tmp_path / "two.txt").write_text("\n".join(TEXTS[:2]))
    spec = AuditSpec(model=str(place / "model"))
    results, problem = attack_update(place / "update", spec, tmp_path / "two.txt", Budget())
    assert problem is None
    assert [pair.scores["exact_match"] for pair in results.trials[0].pairs] == [100, 100]
    assert len(results.trials[0].reconstruction.sentences) == 3
    assert results.scenario.batch_size == 3  # as the update says: a part of the truth makes no other client
    assert "the update was made from 3" in results.scenario.notes[0]
    (tmp_path / "two.json").write_text(json.dumps({"texts": TEXTS[:2], "labels": LABELS[:2]}))
    results, _ = attack_update(place / "update", spec, tmp_path / "two.json", Budget())
    assert results.trials[0].truth_distance is None  # a part of a batch explains no update


def test_a_truth_that_does_not_fit_loses_nothing(place: Path, tmp_path: Path) -> None:
    (tmp_path / "wrong.json").write_text(json.dumps({"texts": TEXTS, "labels": [0, 1]}))
    command = ("attack", place / "update", "--model", place / "model", *QUICK)
    with pytest.raises(GradleakError, match="2 labels for 3"):
        run(*command, "--truth", tmp_path / "wrong.json", "--out", tmp_path / "kept")
    assert load_results(tmp_path / "kept").trials[0].reconstruction.sentences
    with pytest.raises(GradleakError, match="no truth file"):
        run(*command, "--truth", tmp_path / "nowhere.json", "--out", tmp_path / "never")
    assert not (tmp_path / "never").exists()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["texts", "labels", "images", "x"]), inner, max_size=3)
        ),
        max_leaves=8,
    )
)
def test_truth_files_are_read_or_refused(tmp_path: Path, content: Any) -> None:
    place = tmp_path / "truth.json"
    place.write_text(json.dumps(content))
    try:
        truth = read_truth(place)
    except GradleakError as error:
        assert "\n" not in str(error)  # one line
    else:
        assert truth.examples
        assert content["texts"] == truth.texts or content["images"] == truth.images
