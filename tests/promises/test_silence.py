"""No silence: in a file or a pipe a line comes every few seconds, with phase, time used and left, whatever runs."""

import json
import re
import threading

import pytest
import yaml

from gradleak import audit
from gradleak.core.progress import Progress
from gradleak.experiments.runner.serve import MessageProgress
from gradleak.report import live
from gradleak.verdict import gather as module


@pytest.fixture(autouse=True)
def often(monkeypatch):
    monkeypatch.setattr(live, "EVERY", 0.05)


def test_less_than_ten_seconds(monkeypatch):
    monkeypatch.undo()
    assert 0 < live.EVERY < 10


def test_an_attack_that_reports_nothing(call, small_model, tmp_path):
    words = ["--model", small_model, "--attack", "telltale:Sleeper", "--trials", 1, "--budget", "10m"]
    said = call("audit", *words, "--out", tmp_path / "out")
    assert said.code == 0
    lines = [line for line in said.err.splitlines() if re.search(r"^telltale:Sleeper: .*\d+s used, \d+m left", line)]
    assert len(lines) >= 3


def test_a_sweep_tells_of_its_cells(call, small_model, tmp_path):
    config = tmp_path / "sweep.yaml"
    config.write_text(
        yaml.safe_dump({"models": [str(small_model)], "attacks": ["telltale:Sleeper"], "trials": 1, "seeds": 2})
    )
    said = call("sweep", config, "--executor", "inline", "--out", tmp_path / "out")
    assert said.code == 0, said.err
    assert re.search(r"^cell 2 of 2: telltale:Sleeper: \d+s used", said.err, re.M)


class Heard(Progress):
    """Every phase, by name."""

    def __init__(self):
        self.names = []

    def begin(self, what, total, unit=""):
        self.names.append(what)


def test_every_phase_of_an_audit_has_a_name(small_model):
    heard = Heard()
    audit(str(small_model), attack="bag", trials=2, progress=heard)
    phases = "\n".join(heard.names)
    for name in ("loading", "reading data", "making updates", "bag", "control", "scoring the control", "scoring$"):
        assert re.search(name, phases, re.M), name


@pytest.mark.parametrize("words", [["verdict"], ["report"], ["export", "--out", "rows.csv"], ["compare"]])
def test_commands_on_large_results(call, small_model, tmp_path, monkeypatch, words):
    """Reading waits here for as long as it takes to be heard of."""
    out = tmp_path / "out"
    out.mkdir()
    audit(str(small_model), attack="bag", trials=1).save(out)
    monkeypatch.chdir(tmp_path)
    told = threading.Event()
    read = module.load_results
    monkeypatch.setattr(module, "load_results", lambda place: (told.wait(0.3), read(place))[1])
    command, *rest = words
    said = call(command, out, *([out] if command == "compare" else []), *rest)
    assert said.code == 0
    assert re.search(r"^reading results: \d+s used", said.err, re.M)


def test_workers_tell_every_phase():
    """Also those that never get to a second report."""
    sent = []
    progress = MessageProgress(lambda **message: sent.append(json.dumps(message)))
    for name in ("loading", "guessing"):
        progress.begin(name, 0)
    assert [json.loads(line)["what"] for line in sent] == ["loading", "guessing"]
