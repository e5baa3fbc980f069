"""results.json: its schema is pinned; change it on purpose, with `schema_version` and docs/results.md."""

import json
import os
from pathlib import Path

import pytest
from sample import sample_results

from gradleak import GradleakError
from gradleak.audits.results import FILE, Results, load_results

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
