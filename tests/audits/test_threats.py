"""Threat models by name: presets below what is given, named in results and in what is written of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from command_line import run
from sample import sample_results
from tiny import tiny_model

from gradleak import AuditSpec, GradleakError, SweepSpec, audit, load_spec
from gradleak.audits.threats import THREATS
from gradleak.report.annex.sections import annex
from gradleak.report.wording import threat_model
from gradleak.verdict.attempts import group_attempts
from gradleak.verdict.gather import Gathered

PAGE = Path(__file__).parents[2] / "docs" / "threat-models.md"


@pytest.mark.parametrize("name", THREATS)
def test_every_name_stands_for_settings_that_there_are(name):
    spec = AuditSpec(threat=name)
    for setting, value in THREATS[name].settings.items():
        assert getattr(spec, setting) == value
    assert spec.threat_label == name
    assert {"known", "observe"} <= THREATS[name].settings.keys()  # two threat models never depend on other defaults


def test_no_two_are_the_same():
    assert len({repr(sorted(threat.settings.items())) for threat in THREATS.values()}) == len(THREATS)


def test_what_is_given_wins(tmp_path):
    spec = AuditSpec(threat="observer-of-layer", observe="layer:6", known="labels")
    assert (spec.observe, spec.known) == ("layer:6", ("labels",))
    assert spec.threat_label == "observer-of-layer with known=labels observe=layer:6"
    (tmp_path / "a.yaml").write_text("threat: server-with-candidates\ncandidates: 7\n")
    assert load_spec(tmp_path / "a.yaml", {}).candidates == 7
    assert load_spec(tmp_path / "a.yaml", {"threat": "informed-server"}).known == ("batch_size", "labels", "lengths")


def test_another_threat_takes_the_place_of_the_first():
    first = AuditSpec(threat="server-with-candidates", trials=3)
    second = first.with_(threat="observer-of-head")
    assert (second.observe, second.candidates, second.trials) == ("head", None, 3)
    assert first.with_(threat=None).candidates is None
    assert first.with_(trials=5).candidates == 100


def test_sweeps_take_it():
    (named,) = SweepSpec(threat="observer-of-head").audits()
    assert named.observe == "head"
    seen = [each.observe for each in SweepSpec(threat="observer-of-head", observe=("all", "layer:1")).audits()]
    assert seen == ["all", "layer:1"]
    (plain,) = SweepSpec().audits()
    assert plain.observe == "all"


def test_a_wrong_name_is_refused():
    with pytest.raises(GradleakError, match="did you mean 'honest-server'"):
        AuditSpec(threat="honest-sever")
    assert run("audit", "--threat", "nobody").refused


def test_results_name_it():
    model = tiny_model("bert", "classification")
    results = audit(model, threat="observer-of-layer", attack="bag", trials=1)
    assert results.scenario.threat == "observer-of-layer"
    assert results.scenario.observed.selection == "layer:1"
    lines = threat_model(results.scenario)
    assert lines[0].startswith("Threat model observer-of-layer: somebody who sees the gradients of a single layer")
    document = annex(Gathered(Path(), [results]))
    assert any(
        getattr(block, "lines", [""])[0] == lines[0] for section in document.sections for block in section.blocks
    )


def test_a_name_makes_no_other_scenario():
    plain = sample_results()
    named = plain.model_copy(update={"scenario": plain.scenario.model_copy(update={"threat": "informed-server"})})
    assert len(group_attempts([plain, named])) == 1


def test_the_page_and_the_command_list_all(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    listed = run("threats").out
    described = re.findall(r"^\| `([\w-]+)` \|", PAGE.read_text(), re.M)
    assert [name for name in described if name in THREATS] == list(THREATS)
    assert all(name in listed for name in THREATS)
