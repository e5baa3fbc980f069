"""Whatever goes wrong ends in one line and an exit code: no traceback, no hang, nothing half-written."""

from __future__ import annotations

import inspect
import json
import os
import signal
import stat
import uuid
from pathlib import Path

import pytest
import torch
import typer
from command_line import run
from safetensors.torch import save_file
from small_disks import elsewhere, small_disk
from tiny import tiny_model, tiny_tokenizer

from gradleak.cli import app
from gradleak.core.errors import GradleakError
from gradleak.core.reading import read_bytes

QUICK = ("--attack", "lamp-cos", "-o", "steps=2", "-o", "init_draws=1", "-o", "prior=none", "-o", "polish=0")


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """A user's own model on disk, small."""
    place = tmp_path_factory.mktemp("model")
    tiny_model("bert", "classification").module.save_pretrained(place)
    tiny_tokenizer("bert").save_pretrained(place)
    return place


@pytest.fixture(scope="module")
def audited(model, tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("audited") / "out"
    assert run("audit", "--model", model, "--trials", 1, *QUICK, "--out", place).code == 0
    return place


@pytest.fixture(scope="module")
def captured(model, tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("captured") / "update"
    assert run("capture", "--model", model, "--out", place).code == 0
    return place


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch) -> Path:
    """An empty working folder inside another, and a clock: what hangs is an error."""
    folder = tmp_path / "above" / "here"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("GRADLEAK_DEBUG", "0")

    def hangs(*_):
        pytest.fail("it hangs")  # no Exception, so `main` lets it through

    previous = signal.signal(signal.SIGALRM, hangs)
    signal.alarm(60)
    yield folder
    signal.alarm(0)
    signal.signal(signal.SIGALRM, previous)


def refused(*words, says: str = "") -> str:
    """The one line with which a command refuses; it must name what is wrong, and leave nothing behind."""
    before = sorted(Path("..").rglob("*"))
    ended = run(*words)
    assert ended.refused, (ended.code, ended.err)
    assert says in ended.err
    assert sorted(Path("..").rglob("*")) == before
    return ended.err


# --- names of files and folders -----------------------------------------------------------------------


@pytest.mark.parametrize("out", [".", "..", "made/.."])
def test_an_update_needs_a_folder_with_a_name(model, out):
    """The truth and the model go beside it, under its name."""
    refused("capture", "--model", model, "--out", out, says="name")
    torch.save({"a": torch.ones(1)}, "../a.pt")
    refused("convert", "--model", model, "--before", "../a.pt", "--after", "../a.pt", "--lr", 1, "--steps", 1,
            "--out", out, says="name")  # fmt: skip


def paths(command, before=()):
    """Every command with those of its parameters that are paths."""
    for name, below in getattr(command, "commands", {}).items():
        yield from paths(below, (*before, name))
    kinds = inspect.signature(command.callback, eval_str=True).parameters if command.callback else {}
    for parameter in command.params:
        if parameter.name in kinds and "Path" in str(kinds[parameter.name].annotation):
            yield before, parameter


def test_an_empty_name_is_no_path(audited):
    found = list(paths(typer.main.get_command(app)))
    assert len(found) > 20
    for words, parameter in found:
        given = [""] if parameter.param_type_name == "argument" else [parameter.opts[-1], ""]
        refused(*words, *given, says="empty")


def test_a_whole_disk_is_not_searched_for_results(place):
    """A tree of its own and not the machine's: that takes so long on a busy disk that a heartbeat comes first."""
    for first in range(101):
        for second in range(100):
            (place / str(first) / str(second)).mkdir(parents=True)
    assert "folders" in refused("verdict", place)
    assert "folders" in refused("report", place)


def test_what_cannot_be_read_below_a_folder_is_passed_over(audited, place):
    (place / "link").symlink_to("/")
    (place / "loop").symlink_to(place)
    refused("verdict", place, says="holds no results.json")


# --- files that are no files --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["fifo", "device", "folder"])
def test_only_regular_files_are_read(kind, model, audited, captured, place):
    def odd(at: Path) -> Path:
        at.parent.mkdir(parents=True, exist_ok=True)
        if kind == "fifo":
            os.mkfifo(at)
        elif kind == "device":
            at.symlink_to("/dev/zero")
        else:
            at.mkdir()
        return at

    with pytest.raises(GradleakError, match="odd"):
        read_bytes(odd(place / "odd"), 100)
    truth = captured.with_name("update.truth.json")
    for command in (
        ("audit", odd(place / "audit.yaml")),
        ("sweep", odd(place / "sweep.yaml")),
        ("frontier", odd(place / "frontier.yaml")),
        ("reproduce", odd(place / "recipe.yaml")),
        ("audit", "--model", model, "--data", odd(place / "data.csv")),
        ("audit", "--model", model, "--data", odd(place / "data.jsonl")),
        ("audit", "--model", "lenet", "--data", odd(place / "data.npz")),
        ("score", odd(place / "found.json"), truth, "--model", model),
        ("attack", odd(place / "update" / "manifest.json").parent, "--model", model),
        ("verdict", odd(place / "out" / "results.json").parent),
        ("verdict", odd(place / "cell.json")),
        ("report", odd(place / "cells" / "plan.json").parent),
        ("checkpoints", "--model", odd(place / "training" / "metrics.json").parent),
        ("convert", "--model", model, "--gradient", odd(place / "gradient.pt"), "--out", "new"),
    ):
        refused(*command)


def test_a_file_is_never_written_over_a_device(audited, place):
    """The last step of a write is a rename, which would put a file in the device's place."""
    (place / "null.csv").symlink_to("/dev/null")
    os.mkfifo(place / "pipe.csv")
    for name in ("null.csv", "pipe.csv"):
        refused("export", audited, "--out", name, says="no regular file")
    refused("bench", "engine", "--models", "none", "--json", "/dev/full")
    assert stat.S_ISCHR(Path("/dev/full").stat().st_mode)


# --- what stands in them ------------------------------------------------------------------------------


LONG = {"trials": "9" * 5000, "seed": "0x" + "f" * 5000, "text_column": "1:" * 3000 + "1", "budget": "9" * 4000,
        "options: {steps": "0b" + "1" * 20000, "data": "1_" * 3000, "batch_size": "1:" * 3000 + "1.5"}  # fmt: skip


@pytest.mark.parametrize("key", LONG)
def test_numbers_without_end(key, model):
    Path("../a.yaml").write_text(f"model: {model}\n{key}: {LONG[key]}{'}' * key.count('{')}\n")
    refused("audit", "../a.yaml", says="number")


@pytest.mark.parametrize(
    ("flag", "number"),
    [
        ("--seed", 10**30),
        ("--seed", -(10**30)),
        ("--attack-seed", 10**4000),
        ("--trials", 10**30),
        ("--window", 2**63),
    ],
)
def test_numbers_without_end_on_the_command_line(flag, number, model):
    assert len(refused("audit", "--model", model, flag, number)) < 2000
    refused("audit", "--model", model, "--attack", "dlg", "-o", f"steps={number}")


@pytest.mark.parametrize("command", ["audit", "sweep", "frontier", "reproduce"])
def test_a_key_given_twice_in_yaml(command):
    Path("../a.yaml").write_text("model: minilm\ntrials: 1\ntrials: 2\n")
    refused(command, "../a.yaml", says="'trials' twice")
    Path("../a.yaml").write_text("trials: 1\noptions: {steps: 1, 'steps': 2}\n")
    refused(command, "../a.yaml", says="'steps' twice")


def doubled(file: Path, key: str) -> None:
    """Say a key of a JSON file once more."""
    text = file.read_text()
    assert f'"{key}":' in text
    file.write_text(text.replace(f'"{key}":', f'"{key}": null, "{key}":', 1))


def copied(folder: Path, to: Path) -> Path:
    to.mkdir()
    for file in folder.iterdir():
        (to / file.name).write_bytes(file.read_bytes())
    return to


def test_a_key_given_twice_in_json(model, audited, captured):
    results = copied(audited, Path("../results"))
    doubled(results / "results.json", "control")
    for command in ("verdict", "report"):
        refused(command, results, says="'control' twice")
    update = copied(captured, Path("../update"))
    doubled(update / "manifest.json", "batch_size")
    refused("attack", update, "--model", model, says="'batch_size' twice")
    truth = Path("../truth.json")
    truth.write_bytes(captured.with_name("update.truth.json").read_bytes())
    doubled(truth, "texts")
    refused("score", audited, truth, "--model", model, says="'texts' twice")


def test_a_key_given_twice_in_parameters(model):
    for words in (
        ("--client", "fedavg:lr=1,lr=2"), ("--defense", "noise:sigma=1,sigma=2"), ("-o", "steps=1", "-o", "steps=2"),
    ):  # fmt: skip
        refused("audit", "--model", model, *words, says="twice")


@pytest.mark.parametrize("key", ["control", "summary", "trials", "scenario", "scores", "control_scores", "pairs"])
def test_results_that_lack_a_part(audited, key):
    """Left out, and there but empty: both are refused, or shown without it."""
    kept = json.loads((audited / "results.json").read_text())
    for cut in (lambda table: table.pop(key, None), lambda table: table.update({key: type(table[key])()})):
        results = json.loads(json.dumps(kept))
        cut(next(table for table in (results, results["trials"][0]) if key in table))
        Path("../cut").mkdir(exist_ok=True)
        Path("../cut/results.json").write_text(json.dumps(results))
        for command in (("verdict", "../cut"), ("report", "../cut"), ("export", "../cut", "--out", "../cut/a.csv")):
            ended = run(*command)
            assert ended.code == 0 or ended.refused, (command, ended.code, ended.err)


@pytest.mark.parametrize("truth", [{"texts": []}, {"texts": ["a", "b"]}, {}, {"texts": ["a"], "images": ["b"]}])
def test_a_truth_that_is_none(model, truth):
    Path("../found.json").write_text("{}")
    Path("../truth.json").write_text(json.dumps({"labels": [0], **truth}))
    refused("score", "../found.json", "../truth.json", "--model", model)


def test_nested_without_end(model, captured):
    Path("../deep.json").write_text("[" * 100_000)
    refused("score", "../deep.json", "../deep.json", "--model", model)
    Path("../deep.yaml").write_text("a: " + "[" * 100_000)
    refused("audit", "../deep.yaml")


# --- values of commands -------------------------------------------------------------------------------


def test_convert_refuses_what_no_manifest_can_hold(model):
    loaded = tiny_model("bert", "classification").module
    save_file({name: torch.ones_like(weight) for name, weight in loaded.named_parameters()}, "../g.safetensors")
    convert = ("convert", "--model", model, "--out", "new")
    weights = ("--before", model / "model.safetensors", "--after", "../g.safetensors", "--lr", 1)
    for size in (0, -1, 10**9, 10**30):
        refused(*convert, "--gradient", "../g.safetensors", "--batch-size", size, says="batch")
    for steps in (0, 10**9):
        refused(*convert, *weights, "--steps", steps)
    for optimizer in ("a\nb", "\x1b[31m", "x" * 5000, ""):
        refused(*convert, *weights, "--steps", 1, "--optimizer", optimizer, says="optimizer")


def test_an_error_after_a_remark_is_still_one_line(model, captured, place):
    update = copied(captured, Path("../update"))
    manifest = json.loads((update / "manifest.json").read_text())
    (update / "manifest.json").write_text(json.dumps(manifest | {"notes": ["roughly"], "clients": 2}))
    refused("attack", update, "--model", model, "--attack", "lti", says="lti needs")
    refused("attack", update, "--model", model, "--attack", "lti", "-o", f"inverter={place}", says="inverter")
    refused("audit", "--model", model, "--attack", "lti", "-o", f"inverter={place}", says="inverter")


# --- full disks ---------------------------------------------------------------------------------------


def on_a_small_disk(place, kilobytes, words):
    small_disk(place, f"size={kilobytes}k")
    ended = run(*words)
    return ended, sorted(str(path.relative_to(place)) for path in place.rglob("*"))


def test_a_full_disk_leaves_one_line_and_no_file(model, place):
    loaded = tiny_model("bert", "classification").module
    names = [name for name, _ in loaded.named_parameters()]
    save_file({name: loaded.get_parameter(name) + 1 for name in names}, "../after.safetensors")
    disk, half = place / "disk", (model / "model.safetensors").stat().st_size // 2048
    disk.mkdir()
    weights = ("--before", "../after.safetensors", "--after", model / "model.safetensors", "--lr", 1, "--steps", 1)
    for words in (
        ("capture", "--model", model),
        ("convert", "--model", model, *weights),
        ("finetune", "--model", model, "--data", "builtin", "--epochs", 1, "--batch-size", 200),
        ("finetune", "--model", model, "--data", "builtin", "--checkpoints", 1, "--batch-size", 200),
    ):
        ended, left = elsewhere(on_a_small_disk, disk, half, (*words, "--out", disk / "out"))
        assert ended.refused, (words[0], ended)
        assert "No space left" in ended.err
        assert left == []


def test_what_training_writes_is_for_its_owner_only(model, place):
    ended = run("finetune", "--model", model, "--data", "builtin", "--batch-size", 200, "--checkpoints", 1,
                "--out", place / "tuned")  # fmt: skip
    assert ended.code == 0, ended.err
    files = [path for path in (place / "tuned").rglob("*") if path.is_file()]
    assert {path.name for path in files} >= {"model.safetensors", "config.json", "tokenizer.json", "metrics.json"}
    assert {oct(path.stat().st_mode & 0o777) for path in files} == {"0o600"}


# --- the boundary -------------------------------------------------------------------------------------


OWN = """
from gradleak import Attack

class Mine(Attack):
    name = "mine"
    summary = "fails"

    def run(self, updates, model, context):
        {body}
"""


def failing(model, body, *words):
    """An audit with an attack of the user's own that does this."""
    name = f"own_{uuid.uuid4().hex}"  # a module is imported once
    Path(f"{name}.py").write_text(OWN.format(body=body))
    ended = run(*words, "audit", "--model", model, "--attack", f"{name}:Mine", "--trials", 1, "--out", "out")
    assert not Path("out").exists()
    return ended


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("open('nowhere.txt')", "nowhere.txt: No such file or directory"),
        ("raise OSError(28, 'No space left on device')", "No space left on device"),
        ("raise MemoryError", "not enough memory"),
        ("import torch; torch.empty(10**15)", "not enough memory"),
        ("self.run(updates, model, context)", "deep"),
        ("from safetensors import SafetensorError; raise SafetensorError('it is cut')", "it is cut"),
        ("from gradleak import AuditSpec; AuditSpec(trials=0)", "trials"),
    ],
)
def test_what_a_user_can_mend_is_one_line(model, body, says):
    ended = failing(model, body)
    assert ended.refused, (ended.code, ended.err)
    assert says in ended.err


def test_an_error_in_an_attack_of_ones_own_is_one_line_and_no_bug_of_ours(model):
    ended = failing(model, "raise KeyError('Rosa moved to ward six')")
    assert ended.refused
    (line,) = ended.lines
    assert all(word in line for word in ("KeyError", "own_", "line 9", "no part of gradleak", "--debug"))
    assert not any(word in line for word in ("bug:", "report", "Rosa"))


@pytest.fixture
def buggy(monkeypatch):
    """A function of ours that fails; its code is that of no file, so it is nobody else's."""
    space = {}
    exec(compile("def check(*given): raise KeyError('Rosa moved to ward six')", "<ours>", "exec"), space)
    monkeypatch.setattr("gradleak.attacks.run._check", space["check"])


def test_a_bug_is_one_line_that_says_where_to_report_it(model, buggy):
    ended = failing(model, "pass")
    assert ended.code == 70
    (line,) = ended.lines
    assert line.startswith("gradleak: ")
    assert all(word in line for word in ("bug", "KeyError", "<ours>", "line 1", "--debug", "report"))
    assert "Rosa" not in line  # it is to be shown to others, so nothing private is in it


def test_debug_shows_the_traceback(model, buggy, monkeypatch):
    for words in (["--debug"], []):
        ended = failing(model, "pass", *words)
        assert (ended.code, "Traceback" in ended.err) == (70, True)
        assert ended.lines[-1].startswith("gradleak: ")
        monkeypatch.setenv("GRADLEAK_DEBUG", "1")
    monkeypatch.setenv("GRADLEAK_DEBUG", "0")
    assert "Traceback" not in failing(model, "pass").err


def test_a_refusal_cannot_steer_a_terminal():
    assert "\x1b" not in refused("audit", "\x1b[31mred\x07.yaml")
