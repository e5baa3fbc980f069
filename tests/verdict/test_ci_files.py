"""Verdicts as SARIF and JUnit's XML, and the exit code that fails a pipeline."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest
from command_line import run
from hypothesis import given
from hypothesis import strategies as st
from invented import audit

from gradleak import judge
from gradleak.report.junit import junit
from gradleak.report.sarif import sarif
from gradleak.verdict.attempts import Missing
from gradleak.verdict.model import LEVELS
from gradleak.verdict.rule import LIMITS, fails, reaches

LOW = [5, 6, 4, 5, 6, 5, 4, 6, 5, 5]
AUDITS = {
    "critical": audit([100, 90, 95]),
    "high": audit([60] * 10, scenario={"defenses": ["noise:sigma=0.1"]}),
    "moderate": audit([15] * 10, scenario={"defenses": ["prune:ratio=0.9"]}),
    "unfinished": audit(LOW, status="budget-exhausted", scenario={"defenses": ["quantize:bits=1"]}),
    "unclear": audit(LOW[:3], scenario={"defenses": ["mask:ratio=0.5"]}),
    "not shown": audit(LOW, scenario={"defenses": ["sign"]}),
}
EVERY = judge(list(AUDITS.values()), [Missing("cell-7 (failed: Rosa)", lambda _: False)])


def test_there_is_an_audit_of_every_level():
    assert [scenario.level for scenario in EVERY.scenarios] == list(LEVELS)
    assert list(AUDITS) == list(LEVELS)


def test_sarif_has_what_the_standard_requires():
    """The properties that SARIF 2.1.0 demands, its words, and that what refers to something finds it."""
    log = sarif(EVERY, "configs/my audit.yaml")
    assert log["version"] == "2.1.0"
    assert log["$schema"].endswith("sarif-schema-2.1.0.json")
    (one,) = log["runs"]
    driver = one["tool"]["driver"]
    assert driver["name"] == "gradleak"
    rules = [rule["id"] for rule in driver["rules"]]
    assert len(set(rules)) == len(rules)
    for rule in driver["rules"]:
        assert rule["shortDescription"]["text"]
        assert rule["fullDescription"]["text"]
        assert rule["defaultConfiguration"]["level"] in ("none", "note", "warning", "error")
    assert len(one["results"]) == len(LEVELS)
    for result in one["results"]:
        assert rules[result["ruleIndex"]] == result["ruleId"]
        assert result["message"]["text"]
        assert result["kind"] in ("fail", "open", "informational")
        # Of what did not fail the standard demands the level "none".
        assert (result["level"] == "none") == (result["kind"] != "fail")
        (location,) = result["locations"]
        assert location["physicalLocation"]["artifactLocation"]["uri"] == "configs/my%20audit.yaml"
        assert location["physicalLocation"]["region"]["startLine"] >= 1
    assert len({result["partialFingerprints"]["scenario/v1"] for result in one["results"]}) == len(LEVELS)


def test_sarif_says_how_bad_it_is():
    results = sarif(EVERY, "audit.yaml")["runs"][0]["results"]
    assert [result["level"] for result in results] == ["error", "error", "warning", "none", "none", "none"]
    assert results[0]["message"]["text"].endswith(EVERY.scenarios[0].headline)
    again = sarif(judge([audit([50] * 10)]), "audit.yaml")["runs"][0]["results"]
    before = sarif(judge([AUDITS["critical"]]), "audit.yaml")["runs"][0]["results"]
    assert again[0]["partialFingerprints"] == before[0]["partialFingerprints"]  # one alert, which now is less bad


@pytest.mark.parametrize("limit", LIMITS)
def test_junit_fails_what_reaches_the_limit(limit):
    whole = ElementTree.fromstring(junit(EVERY, limit))
    assert whole.tag == "testsuites"
    (suite,) = whole
    cases = suite.findall("testcase")
    failed = [case.find("failure").get("type") for case in cases if case.find("failure") is not None]
    assert [each for each in failed if each] == [level for level in LEVELS if reaches(level, limit)]
    skipped = [case for case in cases if case.find("skipped") is not None]
    assert all(len(case.findall("failure")) + len(case.findall("skipped")) < 2 for case in cases)
    for element in (whole, suite):
        assert int(element.get("tests")) == len(cases) == len(LEVELS) + 1
        assert int(element.get("failures")) == len(failed)
        assert int(element.get("skipped")) == len(skipped)
    assert all(case.get("name") and case.get("classname") for case in cases)
    passed = [case for case in cases if case.find("failure") is None and case.find("skipped") is None]
    assert "level: not shown" in passed[-1].findtext("system-out")
    assert "no level that says nothing can be read" in suite.findtext("system-out")


def test_without_a_limit_junit_fails_what_leaks():
    failed = ElementTree.fromstring(junit(EVERY)).findall(".//failure")
    assert [each.get("type") for each in failed] == ["critical", "high", "moderate"]


def test_neither_holds_texts():
    """What CI servers keep is read by many."""
    for text in (json.dumps(sarif(EVERY, "audit.yaml")), junit(EVERY)):
        assert "Rosa" not in text
        assert "names" not in text  # a word of every invented sentence


@given(name=st.text(min_size=1))
def test_any_name_is_wellformed(name):
    changes = {"scenario": name, "defense": name, "headline": name}
    odd = EVERY.model_copy(update={"scenarios": [EVERY.scenarios[0].model_copy(update=changes)]})
    suite = ElementTree.fromstring(junit(odd))
    assert suite.find(".//testcase").get("name")
    assert json.loads(json.dumps(sarif(odd, name)))["runs"][0]["results"]


def test_an_attempt_without_a_result_fails_who_asks_for_finished_ones():
    missing = judge([AUDITS["not shown"]], [Missing("cell-7 (not run)", lambda _: False)])
    assert missing.level == "not shown"
    assert fails(missing, "unclear")
    assert fails(missing, "unfinished")
    assert not fails(missing, "moderate")


@pytest.fixture
def folder(tmp_path):
    for name, results in AUDITS.items():
        place = tmp_path / "runs" / name.replace(" ", "-")
        place.mkdir(parents=True)
        results.save(place)
    return tmp_path / "runs"


@pytest.mark.parametrize(
    ("level", "limit", "code"),
    [
        ("critical", "critical", 3), ("critical", "unclear", 3), ("high", "critical", 0), ("high", "high", 3),
        ("moderate", "high", 0), ("unfinished", "moderate", 0), ("unfinished", "unfinished", 3),
        ("unclear", "Unclear", 3), ("not-shown", "unclear", 0),
    ],
)  # fmt: skip
def test_exit_codes(folder, level, limit, code):
    ended = run("verdict", folder / level, "--fail-on", limit)
    assert ended.code == code, ended
    assert ("failed" in ended.out.splitlines()[-1]) == (code == 3)


def test_the_files_are_written_even_if_it_fails(folder, tmp_path):
    files = tmp_path / "found.sarif", tmp_path / "found.xml"
    ended = run(
        "verdict", folder, "--fail-on", "high", "--sarif", files[0], "--junit", files[1], "--source", "a.yaml"
    )
    assert ended.code == 3
    log = json.loads(files[0].read_text())
    places = {
        result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for result in log["runs"][0]["results"]
    }
    assert places == {"a.yaml"}
    assert ElementTree.parse(files[1]).getroot().get("failures") == "2"
    assert files[0].stat().st_mode & 0o777 == 0o600


def test_a_level_that_is_none_is_refused(folder):
    for wrong in ("hihg", "not shown", ""):
        ended = run("verdict", folder, "--fail-on", wrong)
        assert ended.refused, ended
    assert "high" in run("verdict", folder, "--fail-on", "hihg").err
