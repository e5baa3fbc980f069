"""With --redact no word of the private texts, nor of what was read back, is printed or written, whatever fails."""

import json
import re
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from telltale import SECRET
from typer.main import get_command

from gradleak import audit
from gradleak.attacks.base import Reconstruction, Sentence
from gradleak.audits.redact import redact_answer
from gradleak.cli import app
from gradleak.core.errors import GradleakError
from gradleak.core.privacy import MASK, described, private, redacting
from gradleak.data.texts import read_data
from gradleak.report import live

INVENTED = [
    "Zorbliqua met Frandelkin near Wubbernaught.",
    "Doctor Plimsnark gave Yovandrel 7315528 crowns.",
    "Skrellington owes Mirthwicket a glavendish.",
    "Bravundle and Cheptillo left Oxquimber.",
]
LABEL = "grobnikal"
LONG = "Hexwandril " * 90
WORDS = sorted(
    {word for text in (*INVENTED, LABEL, LONG, SECRET) for word in re.findall(r"[A-Za-z]{7,}|\d{5,}", text)}
)
BAG = ["--attack", "bag", "--trials", 2]


@pytest.fixture(autouse=True)
def talkative(monkeypatch):
    """Progress says all it has to say at once."""
    monkeypatch.setattr(live, "EVERY", 0.001)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=":")


def table(place, *rows):
    place.write_text("text,label\n" + "".join(f'"{text}",{label}\n' for text, label in rows))
    return place


@pytest.fixture
def data(tmp_path):
    """Texts that can be audited, and some that cannot."""
    here = tmp_path / "data"
    here.mkdir()
    good = [(text, number % 2) for number, text in enumerate(INVENTED)]
    return {
        "good": table(here / "good.csv", *good),
        "label": table(here / "label.csv", *((text, LABEL) for text, _ in good)),
        "class": table(here / "class.csv", *((text, 7315528) for text, _ in good)),
        "long": table(here / "long.csv", *((LONG, 0) for _ in good)),
    }


def told(text):
    return [word for word in WORDS if word.lower() in text.lower()]


def told_in(folder):
    """Every file of a folder that holds a private word."""
    files = [path for path in folder.rglob("*") if path.is_file()] if folder.is_dir() else []
    found = {path.name: told(path.read_bytes().decode(errors="replace")) for path in files}
    return {name: words for name, words in found.items() if words}


def silent(said, folder=None):
    assert told(said.out + said.err) == []
    assert folder is None or told_in(folder) == {}
    return said


def read_again(call, out):
    """Every command that takes results."""
    for words in (
        ["verdict", out],
        ["report", out],
        ["annex", out],
        ["export", out, "--out", out / "rows.csv"],
        ["compare", out, out],
    ):
        assert silent(call(*words), out).code == 0


def test_every_command_that_redacts_is_tried_here():
    """A command that gets the option must get a test as well."""
    offering = {
        name
        for name, command in get_command(app).commands.items()
        if any("--redact" in getattr(parameter, "opts", ()) for parameter in command.params)
    }
    elsewhere = {"contains"}  # tests/cli/test_contains_command.py
    assert offering - elsewhere == {"audit", "attack", "map", "checkpoints", "report", "annex", "export", "compare"}


def test_without_it_the_words_are_there(call, small_model, data, tmp_path):
    """The check can fail."""
    out = tmp_path / "out"
    said = call("audit", "--model", small_model, "--data", data["good"], *BAG, "--out", out)
    assert told(said.out)
    assert told_in(out)
    assert told(call("audit", "--model", small_model, "--data", data["label"], *BAG, "--out", out).err) == [LABEL]


@pytest.mark.parametrize("method", ["telltale:Teller", "bag"])
def test_audit_and_all_that_reads_it(call, small_model, data, tmp_path, method):
    out = tmp_path / "out"
    words = ["--model", small_model, "--data", data["good"], "--attack", method, "--trials", 2, "--out", out]
    assert silent(call("audit", *words, "--redact"), out).code == 0
    read_again(call, out)


@pytest.mark.parametrize("kind", ["label", "class", "long"])
def test_audit_of_what_cannot_be_audited(call, small_model, data, tmp_path, kind):
    out = tmp_path / "out"
    said = silent(call("audit", "--model", small_model, "--data", data[kind], *BAG, "--redact", "--out", out), out)
    assert said.code == 2
    assert MASK in said.err


def test_a_bug_shows_no_words(call, small_model, data, tmp_path):
    words = ["--model", small_model, "--data", data["good"], "--attack", "telltale:Stumbler", "--redact"]
    assert silent(call("audit", *words, "--out", tmp_path / "out")).code != 0


@pytest.mark.parametrize("method", ["telltale:Teller", "bag"])
def test_attack_of_a_recorded_update(call, small_model, data, tmp_path, method):
    update, out = tmp_path / "update", tmp_path / "out"
    call("capture", "--model", small_model, "--data", data["good"], "--out", update)
    words = ["--model", small_model, "--attack", method, "--redact", "--out", out]
    assert silent(call("attack", update, *words), out).code == 0
    truth = tmp_path / "update.truth.json"
    assert silent(call("attack", update, *words, "--truth", truth), out).code == 0


def sweep(place, small_model, data, **changes):
    choice = {
        "models": [str(small_model)], "data": [str(path) for path in data.values()],
        "attacks": ["bag", "telltale:Stumbler", "telltale:Teller"], "trials": 1, "redact": True,
    }  # fmt: skip
    place.write_text(yaml.safe_dump({**choice, **changes}))
    return place


def test_sweep_with_failing_cells(call, small_model, data, tmp_path):
    out, config = tmp_path / "out", sweep(tmp_path / "sweep.yaml", small_model, data)
    said = silent(call("sweep", config, "--executor", "inline", "--out", out), out)
    assert said.code == 1
    assert "10 failed" in said.out
    read_again(call, out)
    assert "LookupError" in (out / "table.csv").read_text()


@pytest.mark.usefixtures("forked_workers")
def test_workers_of_a_sweep(call, small_model, data, tmp_path):
    config = sweep(
        tmp_path / "sweep.yaml", small_model, {"label": data["label"]}, attacks=["telltale:Stumbler", "bag"]
    )
    out = tmp_path / "out"
    assert silent(call("sweep", config, "--workers", 1, "--out", out), out).code == 1


def test_a_page_without_words_of_a_run_with_them(call, small_model, data, tmp_path):
    """Cells that failed before anything was masked have errors that quote texts."""
    run, out = tmp_path / "run", tmp_path / "out"
    call(
        "sweep", sweep(tmp_path / "sweep.yaml", small_model, data, redact=False), "--executor", "inline", "--out", run
    )
    assert "table.csv" in told_in(run)
    out.mkdir()
    silent(call("export", run, "--out", out / "rows.csv", "--redact"), out)
    silent(call("compare", run, run, "--out", out, "--redact"), out)
    silent(call("report", run, "--redact"))
    silent(call("annex", run, "--redact"))
    assert not {"report.html", "verdict.json", "annex.md", "annex.html"} & set(told_in(run))


def test_experiments(call, small_model, data, tmp_path):
    config = tmp_path / "frontier.yaml"
    rounds = {"rounds": 1, "clients": 1, "batch_size": 1, "test_rows": 1, "seeds": 1}
    choice = {"model": str(small_model), "attacks": ["bag"], "trials": 1, "redact": True, "utility": rounds}
    for kind in ("good", "label"):
        config.write_text(yaml.safe_dump({**choice, "data": str(data[kind])}))
        out = tmp_path / f"frontier-{kind}"
        silent(call("frontier", config, "--executor", "inline", "--out", out), out)
        out = tmp_path / f"map-{kind}"
        words = ["--model", small_model, "--data", data[kind], *BAG, "--redact", "--executor", "inline"]
        silent(call("map", *words, "--out", out), out)
        silent(call("checkpoints", *words, "--out", out), out)


def test_in_python_the_results_are_masked_too(small_model, data):
    results = audit(str(small_model), data=str(data["good"]), attack="bag", trials=1, redact=True)
    assert results.redacted
    assert told(results.model_dump_json()) == []


def test_a_damaged_result_is_refused_without_its_words(call, small_model, data, tmp_path):
    call("audit", "--model", small_model, "--data", data["good"], "--attack", "telltale:Teller", "--out", tmp_path)
    kept = json.loads((tmp_path / "results.json").read_text())
    kept["trials"][0]["reconstruction"]["bag"] = {INVENTED[0]: "much"}
    (tmp_path / "results.json").write_text(json.dumps(kept))
    assert told(call("report", tmp_path).err)
    assert silent(call("report", tmp_path, "--redact")).code == 2


# Files of any shape made of invented words alone: every message about them must do without.
_word = st.sampled_from([word for text in INVENTED for word in re.findall(r"[A-Za-z]{7,}", text)])
_cells = st.lists(_word | st.just("") | st.just('"') | st.just("text") | st.just("label"), max_size=4)
_column = st.none() | st.sampled_from(["text", "label", "1", "3", "nothing"])


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(_cells, max_size=4), kind=st.sampled_from([".csv", ".tsv", ".jsonl", ".txt"]),
    text=_column, label=_column,
)  # fmt: skip
def test_any_data_file(tmp_path, rows, kind, text, label):
    place = tmp_path / f"any{kind}"
    join = "\t".join if kind == ".tsv" else ",".join
    lines = [json.dumps(dict.fromkeys(row, 5)) if kind == ".jsonl" and len(row) < 4 else join(row) for row in rows]
    place.write_text("\n".join(lines))
    try:
        with redacting():
            read_data(place, text, label)
    except GradleakError as error:
        assert told(str(error)) == []


@given(text=st.text(min_size=1))
def test_what_is_private_is_said_only_while_nothing_is_masked(text):
    problem = KeyError(text)
    assert private(text) == text
    with redacting(False):
        assert private(text) == text
    with redacting(), redacting(False):
        assert private(text) == MASK
        assert described(problem).startswith("KeyError: (masked)")
    assert private(text) == text


@given(text=st.text(alphabet="abcdefg ", min_size=1), other=st.text(alphabet="hijkl ", min_size=1))
def test_an_answer_without_its_words(text, other):
    answer = Reconstruction(
        sentences=[Sentence(text=text, tokens=[1], confidence=0.5)],
        bag={other: 1.0},
        counts={other: 2},
        notes=[other],
    )
    kept = redact_answer(answer)
    assert kept.sentences[0].tokens == []
    assert not {*text.split(), *other.split()} & set(
        re.findall(r"\w+", str(kept.model_dump(exclude={"status"}).values()))
    )
