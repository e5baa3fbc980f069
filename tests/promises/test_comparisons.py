"""A comparison says which run was cut short, and no warning of a library leaks; names are not missing by case."""

from __future__ import annotations

import io
import json
import warnings
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from sample import sample_results
from scipy import stats

from gradleak.audits.results import AttackInfo, Results
from gradleak.report.compare import print_comparison, write_comparison
from gradleak.scoring import pieces as module
from gradleak.scoring.interval import mean_interval, student, welch
from gradleak.scoring.pieces import pieces
from gradleak.verdict.compare import FILE, compare
from gradleak.verdict.judge import judge
from gradleak.verdict.show import print_verdict


def ended(status: str, trials: int = 2, attack: str = "lamp-cos") -> Results:
    """Two trials of so many that were asked for; the last ended so."""
    results = sample_results()
    first, last = results.trials
    return results.model_copy(
        update={
            "attack": AttackInfo(name=attack, options={}),
            "scenario": results.scenario.model_copy(update={"trials": trials}),
            "trials": [first, last.model_copy(update={"status": status})],
            "status": status,
        }
    )


def printed(first: Results, second: Results, folder: Path) -> tuple[str, str, list[str]]:
    """What the terminal and the page say, and how the runs ended by the file."""
    found = compare([first], [second], ("a", "b"))
    console = Console(file=io.StringIO(), width=160)
    print_comparison(found, console)
    page = write_comparison(found, folder).read_text()
    (difference,) = json.loads((folder / FILE).read_text())["differences"]
    return console.file.getvalue(), page, difference["ended"]  # type: ignore[attr-defined]


def test_a_run_cut_short_is_named_everywhere(tmp_path: Path) -> None:
    terminal, page, file = printed(ended("completed"), ended("budget-exhausted"), tmp_path)
    line = "lamp-cos in the second run: 1 of 2 trials cut short (budget-exhausted)"
    assert line in terminal
    assert line in page
    assert page.count('<span class="badge warning">⚠ cut short</span>') == 1
    assert file == ["completed", "1 of 2 trials cut short (budget-exhausted)"]


def test_trials_that_were_never_begun_count_too(tmp_path: Path) -> None:
    terminal, _, file = printed(ended("interrupted", trials=10), ended("completed"), tmp_path)
    assert "in the first run: 9 of 10 trials cut short (interrupted)" in terminal
    assert file[1] == "completed"


def test_runs_that_came_to_their_end_carry_no_warning(tmp_path: Path) -> None:
    terminal, page, file = printed(ended("completed"), ended("completed"), tmp_path)
    assert "cut short" not in terminal
    assert "⚠" not in page
    assert file == ["completed", "completed"]


scores = st.lists(st.floats(0, 100) | st.sampled_from([0.0, 50.0, 50.0 + 1e-13, 100.0]), min_size=2, max_size=12)


@given(scores, scores)
def test_no_warning_leaks_from_any_values(first: list[float], second: list[float]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for interval in (welch(first, second), student(first, 0, 100), mean_interval(second)):
            assert interval.low <= interval.mean + 1e-9
            assert interval.mean <= interval.high + 1e-9


@given(scores, scores)
def test_the_change_is_that_of_scipy_where_values_differ(first: list[float], second: list[float]) -> None:
    if min(max(first) - min(first), max(second) - min(second)) < 1:
        return
    expected = stats.ttest_ind(second, first, equal_var=False).confidence_interval(0.95)
    ours = welch(first, second, reach=1e9)
    assert (ours.low, ours.high) == (pytest.approx(expected.low), pytest.approx(expected.high))


@pytest.mark.parametrize("by", ["capitals", "spacy"])
def test_names_without_capitals_could_not_be_looked_for(by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "names_by", lambda: by)
    monkeypatch.setattr(module, "names_by_spacy", lambda text: ())
    results = sample_results()
    for text, expected in (("rosa owes 5 to ana", "names could not be looked for"), ("我的女儿病了", "could not be")):
        for trial in results.trials:
            trial.pairs[0].pieces = pieces(text, text)
        assert expected in words_of(results).lower()
    for trial in results.trials:
        trial.pairs[0].pieces = pieces("The loan was refused.", "the loan")
    assert "no name was found in the texts" in words_of(results).lower()


def words_of(results: Results) -> str:
    console = Console(file=io.StringIO(), width=500)
    print_verdict(judge([results]), console)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_one_sentence_with_a_capital_makes_them_sought(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "names_by", lambda: "capitals")
    lower, upper, none = pieces("rosa left", ""), pieces("we met Rosa", "rosa"), pieces("12 😀", "12")
    assert lower.names_by == "nothing"
    assert (lower + upper).names_by == (upper + lower).names_by == "capitals"
    assert none.names_by == "capitals"  # there is no word that could be a name
