"""The confidence of a matching attack says how much of the update is explained; a run cut short looks like one."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample import sample_results
from tiny import TEXTS

from gradleak import Client, TextModel, attack, score
from gradleak.attacks.base import Reconstruction, Sentence
from gradleak.attacks.search.explained import explained
from gradleak.report.build import write_report
from gradleak.report.reconstruction import print_reconstruction

# So little of a search gives words, and not the right ones.
HARDLY = {"init_draws": 5, "init_orders": 0, "polish": 0}
GIBBERISH = {"dlg": {"steps": 1}, "tag": {"steps": 1}, "lamp-cos": {"steps": 1, **HARDLY}}


@pytest.mark.parametrize("name", GIBBERISH)
def test_gibberish_gets_a_low_one(tiny_bert: TextModel, name: str) -> None:
    updates = [Client(tiny_bert).update([text], [1]) for text in TEXTS]
    for text, found in zip(TEXTS, attack(updates, tiny_bert, name, **GIBBERISH[name]), strict=True):
        assert score(found, [text], tiny_bert).metrics["rougeL"] < 25
        assert found.sentences[0].confidence < 0.5


def test_the_truth_gets_a_high_one_and_noise_lowers_it(tiny_bert: TextModel) -> None:
    text, sure = TEXTS[0], []
    for defenses in ([], ["noise:sigma=0.003"]):
        update = Client(tiny_bert, defenses=defenses).update([text], [1])
        (found,) = attack(update, tiny_bert, "subspace", steps=0, init_draws=5, init_orders=5)
        sure.append(found.sentences[0].confidence)
        if not defenses:
            assert score(found, [text], tiny_bert).metrics["exact_match"] == 100
    assert sure[0] > 0.95
    assert sure[1] < sure[0]


def test_language_models_and_runs_cut_short_have_one_too(writer: TextModel) -> None:
    update = Client(writer).update(TEXTS[:1])
    for budget in (None, 0.01):
        (found,) = attack(update, writer, "dlg", steps=3, budget=budget)
        assert all(0 <= sentence.confidence <= 0.9 for sentence in found.sentences)


@given(st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 1e6))
def test_it_lies_between_0_and_1_and_falls_with_the_distance(first: float, second: float, guessing: float) -> None:
    nearer, farther = sorted((first, second))
    assert 1 >= explained(nearer, guessing) >= explained(farther, guessing) >= 0


def test_a_run_cut_short_has_no_green_badge(tmp_path: Path) -> None:
    results = sample_results()
    cut = [trial.model_copy(update={"status": "budget-exhausted"}) for trial in results.trials]
    page = write_report(
        results.model_copy(update={"trials": cut, "status": "budget-exhausted"}), tmp_path
    ).read_text()
    assert '"badge warning"' in page
    assert ".badge.warning { color: var(--word)" in page
    assert "ran out of its time budget" in page


def test_a_run_cut_short_is_a_warning_in_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    yellow = "\x1b[1;33m"
    for status in ("completed", "budget-exhausted", "interrupted"):
        found = Reconstruction(sentences=[Sentence(text="words", tokens=[1], confidence=0.5)], status=status)
        print_reconstruction(found)
        assert (yellow in capsys.readouterr().out) == (status != "completed")
