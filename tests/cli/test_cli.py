"""The commands as a user runs them: what they print, what they write, how they refuse.

Most run in this process. To import torch and transformers takes a process of its own ten times as long as these
commands take, so only what is about the process has one: start-up, the exit code, the same result again. Ctrl-C has a
fork.
"""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command_line import run
from tiny import tiny_model, tiny_tokenizer

from gradleak.audits.results import load_results
from gradleak.audits.spec import AuditSpec, about
from gradleak.cli import main
from gradleak.updates.update import load_update

QUICK = ["--attack", "lamp-cos", "-o", "steps=3", "-o", "init_draws=2", "-o", "prior=none", "-o", "polish=0"]


def started(*words):
    """The command in a process of its own."""
    command = [sys.executable, "-m", "gradleak", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    """No line of a table is broken."""
    monkeypatch.setenv("COLUMNS", "160")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A user's own model on disk, small."""
    place = tmp_path_factory.mktemp("model")
    tiny_model("bert", "classification").module.save_pretrained(place)
    tiny_tokenizer("bert").save_pretrained(place)
    return place


@pytest.fixture(scope="module")
def captured(tmp_path_factory, folder):
    out = tmp_path_factory.mktemp("captured") / "update"
    done = run("capture", "--model", folder, "--batch-size", 2, "--out", out)
    assert done.code == 0, done.err
    return out


def test_threads_that_wait_give_their_core_away():
    """Which must be said before torch is loaded."""
    code = """if True:
        import os, sys
        from gradleak.cli import main
        sys.argv = ["gradleak", "--version"]
        try:
            main()
        except SystemExit:
            print(os.environ["OMP_WAIT_POLICY"], "torch" in sys.modules)
        """
    elsewhere = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    for environment, policy in ((elsewhere, "PASSIVE"), ({**elsewhere, "OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE")):
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment
        )
        assert done.stdout.splitlines()[-1] == f"{policy} False", done.stderr


def test_version_and_listings_are_quick_and_complete():
    assert started("--version").stdout.startswith("gradleak 0.")
    assert "lamp-cos" in run("attacks").out
    assert "distilbert" in run("models").out
    assert "--lora r=32,alpha=64,targets=query+value,dropout=0.075" in run("clients").out
    assert "wikitext2" in run("assets", "list").out
    assert Path(run("assets", "path", "minilm").out.strip()).is_dir()


def test_every_setting_is_an_option_with_its_default(monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    shown = " ".join(run("audit", "--help").out.split())
    for name, field in AuditSpec.model_fields.items():
        flag = about(field, "flag") or f"--{name.replace('_', '-')}"
        assert f" {flag.split(',')[-1]} " in shown, name
        if field.default not in (None, (), {}, False) and "default" not in field.description:
            default = ",".join(field.default) if isinstance(field.default, tuple) else field.default
            assert f"{field.description[1:]}; default: {default}." in shown, name


def test_help_loads_neither_torch_nor_transformers():
    code = (
        "import sys; import gradleak.cli; print([name for name in ('torch', 'transformers') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


def test_audit_writes_results_and_report(folder, tmp_path):
    done = run("audit", "--model", folder, "--trials", 3, "--batch-size", 2, *QUICK, "--out", tmp_path / "out")
    assert done.code == 0, done.err
    assert "ROUGE-L" in done.out
    results = load_results(tmp_path / "out")
    assert (len(results.trials), results.scenario.batch_size) == (3, 2)
    assert all(len(trial.pairs) == 2 for trial in results.trials)
    assert (tmp_path / "out" / "report.html").stat().st_mode & 0o777 == 0o600
    before = (tmp_path / "out" / "report.html").read_text()
    again = run("report", tmp_path / "out")
    assert again.code == 0
    assert (tmp_path / "out" / "report.html").read_text() == before


def test_audit_repeats_itself(folder, tmp_path):
    """Also in another process, where the hashes of strings, and with them the order of sets, are others."""
    words = ("audit", "--model", folder, "--trials", 2, *QUICK, "--seed", 3, "--out")
    assert run(*words, tmp_path / "a").code == 0
    done = started(*words, tmp_path / "b")
    assert done.returncode == 0, done.stderr
    ours, theirs = (load_results(tmp_path / name).trials for name in ("a", "b"))
    assert [trial.reconstruction.sentences for trial in ours] == [trial.reconstruction.sentences for trial in theirs]


def test_audit_from_yaml_with_flags_on_top(folder, tmp_path, monkeypatch):
    (tmp_path / "data.csv").write_text("body,y\nfirst text here,0\nsecond text there,1\nthird one now,1\n")
    (tmp_path / "audit.yaml").write_text(
        f"model: {folder}\ndata: data.csv\ntext_column: body\nlabel_column: y\nattack: tag\ntrials: 2\n"
        "options:\n  steps: 3\nout: from-yaml\n"
    )
    monkeypatch.chdir(tmp_path)
    done = run("audit", "audit.yaml", "--trials", 3, "--redact")
    assert done.code == 0, done.err
    results = load_results(tmp_path / "from-yaml")
    assert (results.attack.name, results.attack.options["steps"], len(results.trials)) == ("tag", 3, 3)
    written = (tmp_path / "from-yaml" / "results.json").read_text() + (
        tmp_path / "from-yaml" / "report.html"
    ).read_text()
    assert "second text" not in written + done.out
    assert results.redacted


def test_capture_attack_score(folder, captured, tmp_path):
    names = {path.name for path in captured.iterdir()}
    assert names == {"update.safetensors", "manifest.json"}
    truth = captured.with_name("update.truth.json")
    assert truth.stat().st_mode & 0o777 == 0o600
    assert len(json.loads(truth.read_text())["texts"]) == 2
    done = run("attack", captured, "--model", folder, *QUICK, "--out", tmp_path)
    assert done.code == 0, done.err
    scored = run("score", tmp_path, truth, "--model", folder)
    assert scored.code == 0, scored.err
    assert "ROUGE-2" in scored.out


def test_capture_of_a_part_says_what_it_holds(folder, tmp_path):
    out = tmp_path / "update"
    done = run("capture", "--model", folder, "--observe", "layer:2.key", "--out", out)
    assert done.code == 0, done.err
    assert "sees layer:2.key: 1 tensor, 256 parameters" in " ".join(done.err.split())
    assert list(load_update(out).tensors) == ["bert.encoder.layer.1.attention.self.key.weight"]


def test_bad_input_in_a_process_of_its_own(tmp_path):
    done = started("audit", "--budget", "soon", "--out", tmp_path / "out")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("gradleak: the command line: 'soon' is not a duration")
    assert not list(tmp_path.iterdir())


def test_ctrl_c_keeps_the_best_so_far(folder, captured, tmp_path):
    """In a fork, which has imported all that a command needs: `captured` did."""
    out = tmp_path / "out"
    words = ("audit", "--model", folder, "--trials", 1, "--attack", "dlg", "-o", "steps=1000000", "--out", out)
    process = multiprocessing.get_context("fork").Process(target=forked, args=(tmp_path, *words))
    process.start()
    deadline = time.monotonic() + 60
    while not stepping(process.pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    os.kill(process.pid, signal.SIGINT)
    process.join(60)
    stderr = (tmp_path / "stderr").read_text()
    assert process.exitcode == 130, stderr
    assert "interrupted" in (tmp_path / "stdout").read_text()
    assert load_results(out).status == "interrupted"
    assert (out / "report.html").is_file()
    assert "Traceback" not in stderr


def forked(place, *words):
    """The command in this process, which is to end with it; what it says goes to files."""
    sys.stdout, sys.stderr = ((place / name).open("w", encoding="utf-8") for name in ("stdout", "stderr"))
    sys.argv = ["gradleak", *map(str, words)]
    main()


def stepping(pid):
    """Loading is over once the process has been busy for a while: three seconds of processor time."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") > 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["audit", "--attack", "lampcos"], "did you mean 'lamp-cos'"),
        (["audit", "--model", "minilmm"], "did you mean 'minilm'"),
        (["audit", "--data", "nowhere.csv"], "no data file at nowhere.csv"),
        (["audit", "--data", "empty.csv"], "holds no texts"),
        (["audit", "--data", "good.csv", "--text-column", "txet"], "did you mean 'text'"),
        (["audit", "--data", "good.csv", "--text-column", "9"], "no column 9"),
        (["audit", "--data", "label.csv", "--trials", "1"], "label 7 is out of range"),
        (["audit", "--data", "long.txt", "--trials", "1"], "takes at most 64"),
        (["audit", "--data", "good.csv", "--trials", "9"], "need 9 rows"),
        (["audit", "--trials", "0"], "trials"),
        (["audit", "--device", "warp"], "device 'warp'"),
        (["audit", "--known", "everything"], "unknown value 'everything'"),
        (["audit", "--observe", "layre:1"], "is not a selection; write all"),
        (["audit", "--observe", "layer:9"], "has layers 1 to 2, not 9"),
        (["audit", "--budget", "soon"], "not a duration"),
        (["audit", "-o", "stepz=5"], "did you mean 'steps'"),
        (["audit", "-o", "steps=many"], "option 'steps'"),
        (["audit", "-o", "steps"], "key=value"),
        (["audit", "bad.yaml"], "unknown key 'modle'"),
        (["audit", "none.yaml"], "no configuration file"),
        (["audit", "--out", "good.csv/below"], "cannot write to the folder"),
        (["audit", "--window", "60"], "no text of the data has 60 tokens"),
        (["audit", "--attack", "lti"], "lti needs a trained network"),
        (["train-inverter", "--model", "lti:tokens=1", "--out", "out"], "tokens"),
        (["train-inverter", "--model", "ltt", "--out", "out"], "did you mean 'lti'"),
        (
            ["train-inverter", "--model", "FOLDER", "--aux", "nowhere.txt", "--out", "out"],
            "no data file at nowhere.txt",
        ),
        (
            ["train-inverter", "--model", "FOLDER", "--features", "structred", "--out", "out"],
            "'structured' or 'hashed'",
        ),
        (["train-inverter", "--model", "FOLDER", "--defense", "sine", "--out", "out"], "did you mean 'sign'"),
        (["report", "."], "holds no results.json"),
        (["attack", "nowhere"], "holds no manifest.json"),
        (["attack", "UPDATE", "--model", "minilm"], "the update was made with (--model)"),
        (["assets", "pull", "minlm"], "did you mean 'minilm'"),
        (["score", "nowhere", "nowhere.json"], "holds no results.json"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(folder, captured, tmp_path, words, message, monkeypatch):
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "good.csv").write_text("text,label\nsome text,1\nmore text,0\n")
    (tmp_path / "label.csv").write_text("text,label\nsome text,7\n")
    (tmp_path / "long.txt").write_text("word " * 300)
    (tmp_path / "bad.yaml").write_text("modle: minilm\n")
    before = sorted(tmp_path.rglob("*"))
    words = [{"UPDATE": str(captured), "FOLDER": str(folder)}.get(word, word) for word in words]
    if words[0] == "audit" and "--model" not in words:
        words += ["--model", str(folder)]
    if words[0] == "audit" and "--out" not in words:
        words += ["--out", str(tmp_path / "out")]
    monkeypatch.chdir(tmp_path)
    done = run(*words)
    assert done.code == 2, done.err
    assert message in done.err
    assert len(done.lines) == 1, done.err
    left = [path for path in sorted(tmp_path.rglob("*")) if path not in before]
    assert not left


def test_adapters_go_through_capture_attack_and_score(folder, tmp_path):
    """The same text is the same model in every command; another one is refused."""
    pytest.importorskip("peft")
    rule = ("--client", "adamw:lr=1e-3,clip=1", "--lora", "r=4,b=0.1")
    done = run("capture", "--model", folder, *rule, "--batch-size", 2, "--out", tmp_path / "update")
    assert done.code == 0, done.err
    update = load_update(tmp_path / "update")
    assert all("lora_" in name for name in update.tensors)
    assert str(update.manifest.client) == "adamw:epochs=1,batch=1,lr=0.001,clip=1"
    attack = ("attack", tmp_path / "update", "--model", folder, "--attack", "bag")
    done = run(*attack, "--lora", "r=4,b=0.1", "--out", tmp_path / "attacked")
    assert done.code == 0, done.err
    assert "Fresh LoRA adapters" in done.out + done.err
    for other in ([], ["--lora", "r=4,b=0.2"], ["--lora", "r=8"]):
        refused = run(*attack, *other)
        assert refused.code == 2
        told = [line for line in refused.err.splitlines() if line.startswith("gradleak: ")]
        assert told == refused.err.splitlines()[-1:]  # a busy machine shows progress before


def test_an_audit_of_adapters_says_so(folder, tmp_path):
    pytest.importorskip("peft")
    rule = ("--client", "adamw:lr=1e-3", "--lora", "r=4")
    done = run("audit", "--model", folder, *rule, "--attack", "bag", "--trials", 1, "--out", tmp_path / "out")
    assert done.code == 0, done.err
    results = load_results(tmp_path / "out")
    assert any("Fresh LoRA adapters (r=4,alpha=8,targets=query+value)" in note for note in results.scenario.notes)
    shown = " ".join(done.out.split())
    assert "by 1 step of AdamW (1 epoch, 1 sentence a step, step size 0.001, weight decay 0.01" in shown
