"""The tables of the guide: made of measured rows alone, and the same on the page as in the files."""

import json
import statistics
from pathlib import Path

import pytest
from tiny import tiny_model, tiny_tokenizer

from gradleak.audits.spec import AuditSpec
from gradleak.bench.choose import TABLES, Bench, command, from_frontier, from_utility
from gradleak.bench.choose_show import table
from gradleak.bench.pages import END, place_of
from gradleak.data.texts import read_data
from gradleak.experiments.experiment import RunOptions
from gradleak.experiments.frontier.run import frontier
from gradleak.experiments.frontier.spec import FrontierSpec
from gradleak.experiments.utility import utility

DOCS = Path(__file__).parents[2] / "docs"
FILES = {"minilm": "choose_minilm_sst2.json", "smollm2-lora": "choose_smollm2_lora_enron.json"}
ROW = {
    "reading": {
        "rouge_l": {"mean": 99.6, "low": 90.0, "high": 100.0}, "control": {"mean": 5.2, "low": 1.0, "high": 9.0},
        "trials": 4, "cut": 1,
    },
    "candidates": {
        "auc": {"mean": 0.987, "low": 0.9, "high": 1.0}, "confirmed": {"mean": 80.0, "low": 28.4, "high": 99.5},
        "members": 5,
    },
    "ceilings": [{"scope": "update", "success": 0.1254}, {"scope": "training", "success": 0.0016}],
    "cost": {"mean": 1.25, "low": -3.0, "high": 5.5},
    "metric": "accuracy",
}  # fmt: skip


def test_a_line_says_what_was_measured_and_what_was_not():
    part = {"ceilings": ROW["ceilings"][:1], "reading": {**ROW["reading"], "budget": 60.0}}
    kept = {
        "order": ["sign", "svt", "batch of 4", "mean of 2 clients"], "metric": "accuracy",
        "rows": {"sign": ROW, "batch of 4": part, "svt": {}},
    }  # fmt: skip
    header, _, first, second, _, missing = table(kept).splitlines()
    assert first == (
        "| `sign` | 100 [90, 100] | 5 | 4, 1 cut | 80 [28, 100] % of 5 | 0.99 [0.90, 1.00] | 13 %, 0.16 % | "
        "1.2 [−3.0, 5.5] |"
    )
    assert second == "| batch of 4 | 100 [90, 100] | 5 | 4, 1 cut at 60 s | – | – | 13 % | – |"
    assert missing == "Not run yet: `svt`; mean of 2 clients."
    assert header.count("|") == first.count("|")


@pytest.mark.parametrize("name", FILES)
def test_the_page_has_the_tables_of_the_files(name):
    page = (DOCS / "choose-a-defence.md").read_text(encoding="utf-8")
    kept = json.loads((DOCS / "measurements" / FILES[name]).read_text(encoding="utf-8"))
    shown = page.partition(place_of(f"gradleak.bench.choose {name}"))[2].partition(END)[0]
    assert shown.strip() == table(kept)
    assert set(kept["rows"]) <= set(kept["order"]) == {row.name for row in TABLES[name].rows}


@pytest.mark.parametrize("name", TABLES)
def test_every_row_is_an_audit_that_a_user_can_run(name):
    for row in TABLES[name].rows:
        spec = TABLES[name].spec(row, "some.csv", 3, 7)
        assert command(spec).startswith("gradleak audit --model")
        assert all(f"--defense {text}" in command(spec) for text in spec.defenses)


def test_a_command_names_no_folder_of_a_machine():
    assert "--data enron@. " in command(AuditSpec(data="enron@/home/me/data", attack="bag"))


def test_a_row_on_a_tiny_model():
    bench = Bench(tiny_model("bert", "classification"), read_data(), budget=20.0)
    plain = AuditSpec(attack="bag", trials=3, seed=5)
    noisy = plain.with_(defenses=("dpsgd:noise=50.0,clip=1.0",))
    read, asked = bench.reading(plain), bench.candidates(plain)
    assert (read["trials"], read["cut"]) == (3, 0)
    assert asked["auc"]["mean"] > 0.9
    assert asked["members"] == 3
    # Three sentences are told from the others by chance at times, so those of several seeds are taken together.
    assert statistics.mean(bench.candidates(noisy.with_(seed=seed))["auc"]["mean"] for seed in range(5, 10)) < 0.9
    assert bench.ceilings(plain) == []
    assert bench.ceilings(noisy)[0]["success"] < 0.01


def test_costs_and_readings_of_folders(tmp_path, small_folder):
    inline = RunOptions(executor="inline")
    rounds = {"rounds": 1, "clients": 1, "batch_size": 2, "lr": 0.01, "seeds": 2, "test_rows": 10}
    spec = FrontierSpec(model=str(small_folder), trials=2, attacks=["exact"], defenses=["sign"], utility=rounds)
    result = frontier(spec, tmp_path / "frontier", options=inline)
    result.save(tmp_path / "frontier")
    found = from_frontier(tmp_path / "frontier")
    assert found["sign"]["reading"]["trials"] == 2
    assert set(found["none"]["cost"].values()) == {0.0}
    utility(str(small_folder), defenses=["sign"], out=tmp_path, options=inline, **rounds).save(tmp_path)
    assert from_utility(tmp_path)["sign"]["cost"] == found["sign"]["cost"]


@pytest.fixture
def small_folder(tmp_path):
    place = tmp_path / "model"
    tiny_model("bert", "classification").module.save_pretrained(place)
    tiny_tokenizer("bert").save_pretrained(place)
    return place
