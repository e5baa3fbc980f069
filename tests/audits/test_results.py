"""results.json: its schema is pinned; change it on purpose, with `schema_version` and docs/results.md."""

import json
import os
import sys
from pathlib import Path

import pytest
from sample import sample_results

from gradleak import GradleakError
from gradleak.audits.results import FILE, Results, load_results
from gradleak.scoring.interval import Interval
from gradleak.verdict.judge import judge

SNAPSHOTS = Path(__file__).parent / "snapshots"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("results.schema.json", lambda: Results.model_json_schema()),
        ("results.example.json", lambda: sample_results().model_dump(mode="json")),
    ],
)
def test_snapshot(name, content):
    """Run with UPDATE_SNAPSHOTS=1 to write them anew."""
    text = json.dumps(content(), indent=2, sort_keys=True) + "\n"
    path = SNAPSHOTS / name
    if os.environ.get("UPDATE_SNAPSHOTS"):
        path.write_text(text)
    assert path.read_text() == text


def test_round_trip(tmp_path):
    results = sample_results()
    path = results.save(tmp_path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert load_results(tmp_path) == results


def test_bad_results_are_refused(tmp_path):
    with pytest.raises(GradleakError, match=r"holds no results\.json"):
        load_results(tmp_path)
    (tmp_path / FILE).write_text("{}")
    with pytest.raises(GradleakError, match="not a gradleak result"):
        load_results(tmp_path)
    (tmp_path / FILE).write_text("nonsense")
    with pytest.raises(GradleakError, match="not a gradleak result"):
        load_results(tmp_path)


def test_documented():
    """Every top-level key and every trial key is explained in docs/results.md."""
    text = (Path(__file__).parents[2] / "docs" / "results.md").read_text()
    schema = Results.model_json_schema()
    keys = [
        *schema["properties"],
        *schema["$defs"]["Trial"]["properties"],
        *schema["$defs"]["Scenario"]["properties"],
    ]
    assert not [key for key in keys if f"`{key}`" not in text]


def test_a_result_is_shown_in_a_line_without_its_texts():
    results = sample_results()
    assert (
        repr(results)
        == str(results)
        == "Results(lamp-cos on minilm, 2 trials: ROUGE-L 71 [18, 100], control 6 [0, 12])"
    )
    assert repr(results.trials[0]) == "Trial(index 0, completed, ROUGE-L 66.7, control 5.0)"
    assert repr(results.trials[0].reconstruction) == "Reconstruction(1 sentence, completed in 0.0 s)"
    assert repr(Interval(mean=1 / 3, low=0, high=0.5)) == "Interval(0.3333 [0, 0.5])"
    assert repr(results.model_copy(update={"summary": {}})) == "Results(lamp-cos on minilm, 2 trials)"


def test_a_result_in_a_notebook_is_a_table_without_markup_of_others():
    results = sample_results()
    results.attack.name = "<script>"
    html = results._repr_html_()
    assert "<td>ROUGE-L</td><td>70.8 [18, 100]</td><td>5.5 [0, 12]</td>" in html
    assert "<script" not in html
    verdict = judge([sample_results()])
    assert repr(verdict) == f"Verdict({verdict.scenarios[0].headline})"
    assert "<td>lamp-cos</td><td>ROUGE-L 71 [18, 100]</td>" in verdict._repr_html_()
    both = judge([results, sample_results()])
    assert "<script" not in both._repr_html_()


class StandIn:
    """Takes the place of pandas."""

    DataFrame = staticmethod(list)


def test_a_line_for_every_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", StandIn)
    lines = sample_results().to_pandas()
    assert [(line["trial"], line["truth"], line["rougeL"]) for line in lines] == [
        (1, "Rosa moved to ward six.", 66.67), (2, "The loan was refused.", 75.0),
    ]  # fmt: skip
    (line,) = judge([sample_results()]).to_pandas()
    assert (line["level"], line["attack"], line["leak_mean"]) == ("high", "lamp-cos", pytest.approx(70.83, abs=0.01))


def test_a_data_frame():
    pytest.importorskip("pandas")
    assert sample_results().to_pandas()["rougeL"].mean() == pytest.approx(70.83, abs=0.01)


def test_without_pandas_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(GradleakError, match="pip install pandas"):
        sample_results().to_pandas()
